// The weights that every token reads (the spine), in the form in which the layers use them: dense
// matrices packed for MatMul, matrices that share their input stacked into one, vectors folded
// where that is exact. Everything points into one buffer that K3Weights owns.
//
// Kinds of matrices by precision: exact kF32, bf16 kBf16, q8 kQ8 but for those marked "never
// bytes", which are small and kBf16 then: the decay, whose errors a recurrence would sum up, and
// the heads of latent attention, whose inputs differ from head to head. Those marked "wide" read
// their activations as two bytes: what writes to the residual stream, the router, and the head,
// where an error shows most. That costs arithmetic, but no memory traffic.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/k3/shape.h"
#include "engine/kernels/matmul.h"
#include "engine/spine/spine_builder.h"

namespace mk::k3 {

using Vector = std::span<const float>;

struct KdaWeights {
  PackedMatrix input;           // [4P + f + H, d]: Wq, Wk, Wv, Wg, Wfa, Wb
  PackedMatrix decay;           // [P, f]: Wfb, never bytes
  PackedMatrix output;          // [d, P]: Wo, wide
  const float* conv = nullptr;  // [3][taps][P]: of q, k and v
  Vector decay_bias;            // [P]
  Vector decay_rate;            // [P]: exp(A_log), spread over heads or channels
  Vector norm;                  // [D], shared by the heads
};

struct MlaWeights {
  PackedMatrix input;   // [r_q + r_kv + rho + M v, d]: Wqa, Wkva, Wg
  PackedMatrix query;   // [M (n + rho), r_q]: Wqb
  PackedMatrix output;  // [d, M v]: Wo, wide
  // Wkvb by head: key rows U_h [n, r_kv], the same transposed [r_kv, n], value rows Z_h [v, r_kv].
  // Never bytes.
  std::vector<PackedMatrix> key;
  std::vector<PackedMatrix> key_transposed;
  std::vector<PackedMatrix> value;
  Vector query_norm;   // [r_q]
  Vector latent_norm;  // [r_kv]
};

struct DenseWeights {
  PackedMatrix input;   // [2 D_f, d]: gate, up
  PackedMatrix output;  // [d, D_f]: down, wide
};

struct MoeWeights {
  PackedMatrix router;       // [E, d], wide
  PackedMatrix input;        // [m + 2s, d]: routed down, shared gate, shared up
  PackedMatrix routed_up;    // [d, m], wide
  PackedMatrix shared_down;  // [d, s], wide
  Vector bias;               // [E], steers the selection only
  Vector routed_norm;        // [m]
};

struct LayerWeights {
  Vector input_norm;     // [d]
  Vector post_norm;      // [d]
  Vector attention_mix;  // [d]: norm gain times projection of the attention residuals
  Vector mlp_mix;        // [d]
  // One of each pair is in use.
  KdaWeights kda;
  MlaWeights mla;
  DenseWeights dense;
  MoeWeights moe;
};

// The spine in the form of one precision.
struct K3Weights final : SpineWeights {
  PackedMatrix head;  // [V, d], wide
  Vector final_norm;  // [d]
  Vector output_mix;  // [d]
  std::vector<LayerWeights> layers;
};

}  // namespace mk::k3
