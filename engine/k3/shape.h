// K3Shape: the dimensions of a K3 model under the names that the equations use.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/format/config.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {

struct K3Shape {
  explicit K3Shape(const MkimConfig& config);

  size_t layers;
  size_t hidden;          // d, width of the residual stream
  size_t vocab;           // V
  size_t residual_block;  // layers per block of the attention residuals
  float epsilon;          // of every RMS norm

  // KDA: gated delta attention.
  size_t kda_heads;   // H
  size_t kda_dim;     // D, keys and values alike
  size_t kda_width;   // P = H D
  size_t conv_taps;   // of the short convolutions, current input included
  size_t decay_rank;  // f
  float decay_floor;  // most negative log-decay of a step
  L2Epsilon kda_norm;

  // MLA: latent attention.
  size_t mla_heads;   // M
  size_t query_rank;  // r_q
  size_t kv_rank;     // r_kv
  size_t nope;        // n, per-head part of keys and queries
  size_t rope;        // rho, part of the key that all heads share (never rotated)
  size_t qk;          // n + rho
  size_t value;       // v

  // Feed-forward.
  size_t experts;       // E
  size_t top_k;         // k
  size_t routed_width;  // m, latent width of routed experts
  size_t expert_inner;  // i
  size_t shared_inner;  // s
  size_t dense_inner;
  float routed_scale;
  SituCaps situ;

  std::vector<AttentionKind> attention;       // [layers]
  std::vector<FeedForwardKind> feed_forward;  // [layers]
  // Index of a layer among those of its attention kind: its place in a sequence's state.
  std::vector<size_t> attention_index;
  size_t kda_layers;
  size_t mla_layers;
  size_t moe_layers;

  // Rows of the stacked input projections, and where their parts begin.
  // KDA: q, k, v, output gate (P each), decay rank f, write strength H.
  size_t kda_input_rows() const { return 4 * kda_width + decay_rank + kda_heads; }
  // MLA: query latent r_q, key-value latent r_kv, shared key rho, output gate M v.
  size_t mla_input_rows() const { return query_rank + kv_rank + rope + mla_heads * value; }
  // MoE: router E, routed latent m, shared gate s, shared up s.
  size_t moe_input_rows() const { return experts + routed_width + 2 * shared_inner; }

  // Floats of one cached position of one MLA layer.
  size_t latent_row() const { return kv_rank + rope; }
  size_t expanded_row() const { return mla_heads * (qk + value); }
  // Floats of state of one KDA layer: three convolution windows and H matrices.
  size_t conv_floats() const { return (conv_taps - 1) * kda_width; }
  size_t kda_state_floats() const { return 3 * conv_floats() + kda_width * kda_dim; }
};

}  // namespace mk::k3
