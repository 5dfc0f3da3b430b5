#include "engine/k3/shape.h"

namespace mk::k3 {

K3Shape::K3Shape(const MkimConfig& config)
    : layers(config.n_layers),
      hidden(config.hidden),
      vocab(config.vocab),
      residual_block(config.attn_res_block),
      epsilon(config.rms_eps),
      kda_heads(config.kda_heads),
      kda_dim(config.kda_dim),
      kda_width(kda_heads * kda_dim),
      conv_taps(config.kda_conv),
      decay_rank(config.kda_fa_rank),
      decay_floor(config.gate_lower_bound),
      kda_norm(config.kda_l2 == KdaL2::kMax ? L2Epsilon::kMax : L2Epsilon::kRoot),
      mla_heads(config.mla_heads),
      query_rank(config.mla_q_lora),
      kv_rank(config.mla_kv_lora),
      nope(config.mla_nope),
      rope(config.mla_rope),
      qk(nope + rope),
      value(config.mla_v),
      experts(config.n_experts),
      top_k(config.top_k),
      routed_width(config.routed_hidden),
      expert_inner(config.moe_inter),
      shared_inner(config.shared_inter),
      dense_inner(config.dense_inter),
      routed_scale(config.routed_scale),
      situ{config.situ_beta, config.situ_linear_beta},
      attention(config.attention),
      feed_forward(config.feed_forward),
      kda_layers(0),
      mla_layers(0),
      moe_layers(0) {
  for (const AttentionKind kind : attention) {
    attention_index.push_back(kind == AttentionKind::kKda ? kda_layers++ : mla_layers++);
  }
  for (const FeedForwardKind kind : feed_forward) {
    if (kind == FeedForwardKind::kMoe) ++moe_layers;
  }
}

}  // namespace mk::k3
