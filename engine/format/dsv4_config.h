// DeepSeekConfig: what the config of a DeepSeek-V4 model holds beside the dimensions that all
// architectures have (MkimConfig: layers, width, vocabulary, experts).
//
// The keys stand in the object "ds", or at top level when there is no such object. The initialisers
// are what a missing key means.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace mk {

struct DeepSeekConfig {
  uint32_t n_heads = 8;           // H
  uint32_t head_dim = 128;        // D, of queries, keys and values alike
  uint32_t rope_dim = 64;         // R, rotated tail of a head
  uint32_t q_lora_rank = 128;     // Q
  uint32_t o_lora_rank = 128;     // P, per output group
  uint32_t o_groups = 8;          // G, divides H
  uint32_t sliding_window = 128;  // positions that every layer attends to as they are
  uint32_t index_n_heads = 8;     // heads of the indexer
  uint32_t index_head_dim = 128;  // their width, a power of two
  uint32_t index_topk = 64;       // compressed rows that an indexed layer attends to
  uint32_t n_hash_layers = 3;     // first layers, whose experts follow from the token id
  uint32_t hc_mult = 4;           // residual streams
  uint32_t hc_sinkhorn_iters = 20;
  uint32_t yarn_orig_seq_len = 65536;
  uint32_t max_seq_len = 0;            // 0: no limit
  float rope_theta = 10000;            // of layers without compression
  float compress_rope_theta = 160000;  // of the others
  float yarn_factor = 16;
  float yarn_beta_fast = 32;
  float yarn_beta_slow = 1;
  float swiglu_limit = 10;  // at most 0: none
  float hc_eps = 1e-6f;
  // Round cached rows and index keys to FP8 and FP4, as the model was trained. Off only in tests.
  bool act_qat = true;

  // Positions that one compressed row stands for, per layer: 0 = no compression, 4 = overlapping
  // groups with an indexer, any other number = plain groups. A list in the file that is too short
  // goes on with zeros; without one, layers 0 and 1 have 0, even layers 4 and odd layers 128.
  std::vector<uint32_t> compress_ratios;

  // Part of a head that is not rotated.
  uint32_t nope_dim() const { return head_dim - rope_dim; }
};

// The ratio of layers with overlapping groups and an indexer.
inline constexpr uint32_t kIndexedRatio = 4;

}  // namespace mk
