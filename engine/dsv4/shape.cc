#include "engine/dsv4/shape.h"

#include <algorithm>

#include "engine/kernels/rotary.h"

namespace mk::dsv4 {

Dsv4Shape::Dsv4Shape(const MkimConfig& config)
    : layers(config.n_layers),
      hidden(config.hidden),
      vocab(config.vocab),
      epsilon(config.rms_eps),
      streams(config.ds.hc_mult),
      sinkhorn_iterations(config.ds.hc_sinkhorn_iters),
      mix_epsilon(config.ds.hc_eps),
      heads(config.ds.n_heads),
      head_dim(config.ds.head_dim),
      rope(config.ds.rope_dim),
      query_rank(config.ds.q_lora_rank),
      output_rank(config.ds.o_lora_rank),
      groups(config.ds.o_groups),
      window(config.ds.sliding_window),
      index_heads(config.ds.index_n_heads),
      index_dim(config.ds.index_head_dim),
      index_topk(config.ds.index_topk),
      round_caches(config.ds.act_qat),
      experts(config.n_experts),
      top_k(config.top_k),
      expert_inner(config.moe_inter),
      hash_layers(config.ds.n_hash_layers),
      routed_scale(config.routed_scale),
      swiglu_limit(config.ds.swiglu_limit),
      plain_frequencies(RotaryFrequencies(rope, config.ds.rope_theta)),
      compressed_frequencies(RotaryFrequencies(
          rope, config.ds.compress_rope_theta,
          YarnScaling{config.ds.yarn_factor, config.ds.yarn_beta_fast, config.ds.yarn_beta_slow,
                      static_cast<double>(config.ds.yarn_orig_seq_len)})),
      ratio(config.ds.compress_ratios.begin(), config.ds.compress_ratios.end()),
      max_tokens(config.ds.max_seq_len) {
  for (size_t l = 0; l < layers; ++l) {
    const auto same = [&](const RatioClass& c) { return c.ratio == ratio[l]; };
    auto found = std::find_if(classes.begin(), classes.end(), same);
    if (ratio[l] > 0 && found == classes.end()) {
      found = classes.insert(classes.end(), {ratio[l], 0, indexed(l)});
    }
    class_of.push_back(static_cast<size_t>(found - classes.begin()));
    index_in_class.push_back(ratio[l] > 0 ? found->layers++ : 0);
  }
}

InputParts Dsv4Shape::Inputs(size_t layer) const {
  InputParts parts;
  parts.key_value = query_rank;
  parts.values = parts.key_value + head_dim;
  parts.width = parts.values;
  if (ratio[layer] == 0) return parts;
  parts.scores = parts.values + compressor_width(layer);
  parts.width = parts.scores + compressor_width(layer);
  if (!indexed(layer)) return parts;
  parts.index_values = parts.width;
  parts.index_scores = parts.index_values + 2 * index_dim;
  parts.index_weights = parts.index_scores + 2 * index_dim;
  parts.width = parts.index_weights + index_heads;
  return parts;
}

size_t Dsv4Shape::compressor_token_bytes(size_t layer) const {
  if (ratio[layer] == 0) return 0;
  const size_t values = compressor_width(layer) + (indexed(layer) ? 2 * index_dim : 0);
  return 2 * values * sizeof(float);
}

size_t Dsv4Shape::ring_bytes() const {
  size_t bytes = layers * window_slots() * cached_row().bytes();
  for (size_t l = 0; l < layers; ++l) bytes += compressor_slots(l) * compressor_token_bytes(l);
  return bytes;
}

size_t Dsv4Shape::draft_token_bytes() const {
  size_t bytes = layers * cached_row().bytes();
  for (size_t l = 0; l < layers; ++l) bytes += compressor_token_bytes(l);
  return bytes;
}

size_t Dsv4Shape::bytes_per_token() const {
  size_t bytes = 0;
  for (const RatioClass& c : classes) {
    const size_t tokens = c.ratio * kPageRows;
    bytes += (c.layers * page_layer_bytes(c.indexed) + tokens - 1) / tokens;
  }
  return bytes;
}

}  // namespace mk::dsv4
