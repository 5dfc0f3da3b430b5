// The weights that every token reads (the spine) of a DeepSeek-V4 model, in the form in which the
// layers use them: matrices that share their input stacked into one.
//
// Kinds of matrices by precision: exact kF32, bf16 kBf16, q8 kQ8 but for the mixers of the residual
// streams, which are small and steer all others: kBf16 then. Those marked "wide" read their
// activations as two bytes: what writes to the residual streams, the router, and the head.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/matmul.h"
#include "engine/spine/spine_builder.h"

namespace mk::dsv4 {

using Vector = std::span<const float>;

struct MixerWeights {
  PackedMatrix numbers;  // [(2 + S) S, S d], never bytes
  Vector base;           // [(2 + S) S]
  Vector scale;          // [3]: of reading, writing, mixing
};

struct CompressorWeights {
  Vector slot_bias;  // [r][c w]: added to the scores of a token by its slot in the group
  Vector norm;       // [w]
};

struct AttentionWeights {
  PackedMatrix input;  // see InputParts
  Vector query_norm;   // [Q]
  PackedMatrix query;  // [H D (+ Hi Di), Q]
  Vector key_norm;     // [D]
  Vector sink;         // [H]
  CompressorWeights compressor;
  CompressorWeights index_compressor;
  std::vector<PackedMatrix> group;  // G of [P, H D / G]
  PackedMatrix output;              // [d, G P], wide
};

struct MoeWeights {
  PackedMatrix router;         // [E, d], wide
  Vector bias;                 // [E], steers the selection only; empty in hash layers
  PackedMatrix shared_input;   // [2 F, d]: gate, up
  PackedMatrix shared_output;  // [d, F], wide
};

struct LayerWeights {
  MixerWeights attention_mixer;
  MixerWeights ffn_mixer;
  Vector attention_norm;  // [d]
  Vector ffn_norm;        // [d]
  AttentionWeights attention;
  MoeWeights moe;
};

// The spine in the form of one precision.
struct Dsv4Weights final : SpineWeights {
  PackedMatrix head;       // [V, d], wide
  Vector final_norm;       // [d]
  PackedMatrix head_read;  // [S, S d], never bytes
  Vector head_base;        // [S]
  Vector head_scale;       // [1]
  std::vector<LayerWeights> layers;
};

// What is the same in every precision.
struct Dsv4Tables {
  const float* embedding = nullptr;  // [V][d], row-major
  // [hash layers] of [V][k]: the experts of a token.
  std::vector<std::span<const int32_t>> hash;
};

}  // namespace mk::dsv4
