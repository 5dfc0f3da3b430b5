// Dsv4Shape: the dimensions of a DeepSeek-V4 model under the names that the equations use.

#pragma once

#include <cstddef>
#include <vector>

#include "engine/format/config.h"
#include "engine/kernels/fp8_rows.h"
#include "engine/kernels/packed_matrix.h"

namespace mk::dsv4 {

// Tokens by which a sequence can always go back.
inline constexpr size_t kRewindTokens = 16;
// Rows of a page of compressed rows, and keys of a tile.
inline constexpr size_t kPageRows = 64;

// Layers of one compression ratio: their compressed rows grow in step and share pages.
struct RatioClass {
  size_t ratio = 0;
  size_t layers = 0;
  bool indexed = false;
};

// Where the parts of a layer's stacked input projection begin, in columns of its output.
struct InputParts {
  size_t query = 0;          // [Q]
  size_t key_value = 0;      // [D]
  size_t values = 0;         // [c D], of the compressor
  size_t scores = 0;         // [c D]
  size_t index_values = 0;   // [2 Di], of the indexer's compressor
  size_t index_scores = 0;   // [2 Di]
  size_t index_weights = 0;  // [Hi]
  size_t width = 0;
};

struct Dsv4Shape {
  explicit Dsv4Shape(const MkimConfig& config);

  size_t layers;
  size_t hidden;  // d, width of a residual stream
  size_t vocab;   // V
  float epsilon;  // of every RMS norm

  // Hyper-connections.
  size_t streams;  // S
  size_t sinkhorn_iterations;
  float mix_epsilon;

  // Attention.
  size_t heads;        // H
  size_t head_dim;     // D
  size_t rope;         // R, rotated tail of a head
  size_t query_rank;   // Q
  size_t output_rank;  // P, per group
  size_t groups;       // G
  size_t window;       // W
  size_t index_heads;  // Hi
  size_t index_dim;    // Di
  size_t index_topk;   // Ki
  bool round_caches;   // FP8 and FP4, as in training

  // Feed-forward.
  size_t experts;       // E
  size_t top_k;         // k
  size_t expert_inner;  // F, of routed experts and of the shared one
  size_t hash_layers;
  float routed_scale;
  float swiglu_limit;

  std::vector<float> plain_frequencies;       // [R / 2], of layers without compression
  std::vector<float> compressed_frequencies;  // of the others
  std::vector<size_t> ratio;                  // [layers]
  std::vector<RatioClass> classes;
  std::vector<size_t> class_of;        // [layers]: class of a compressed layer
  std::vector<size_t> index_in_class;  // [layers]
  size_t max_tokens;                   // of a sequence; 0: no limit

  bool indexed(size_t layer) const { return ratio[layer] == kIndexedRatio; }
  // c: groups that overlap have two halves per token, the first for the next group.
  size_t halves(size_t layer) const { return indexed(layer) ? 2 : 1; }
  size_t compressor_width(size_t layer) const { return halves(layer) * head_dim; }
  InputParts Inputs(size_t layer) const;

  size_t stream_floats() const { return streams * hidden; }
  // Numbers of a mixer: S to read, S to write, S x S to mix.
  size_t mixer_rows() const { return (2 + streams) * streams; }
  size_t heads_width() const { return heads * head_dim; }
  size_t group_width() const { return heads_width() / groups; }
  size_t index_width() const { return index_heads * index_dim; }

  CachedRowShape cached_row() const { return {head_dim - rope, rope, round_caches}; }
  WeightKind key_kind() const { return round_caches ? WeightKind::kQ8 : WeightKind::kF32; }
  size_t key_tile_bytes() const { return PackedBytes(key_kind(), kPageRows, index_dim); }
  // Of a page of one layer: rows, then the tile of index keys if there are any.
  size_t page_rows_bytes() const { return (kPageRows * cached_row().bytes() + 63) / 64 * 64; }
  size_t page_layer_bytes(bool has_keys) const {
    return page_rows_bytes() + (has_keys ? key_tile_bytes() : 0);
  }

  // Slots of the rings that a sequence keeps of its last tokens.
  size_t window_slots() const { return window + kRewindTokens; }
  size_t compressor_slots(size_t layer) const {
    return (indexed(layer) ? 2 * ratio[layer] : ratio[layer]) + kRewindTokens;
  }
  // Of both compressors, for one token.
  size_t compressor_token_bytes(size_t layer) const;
  // Bytes of all rings, and what a token adds to the compressed rows, rounded up.
  size_t ring_bytes() const;
  size_t bytes_per_token() const;
  // What a token gives to the rings, which a draft keeps apart.
  size_t draft_token_bytes() const;
};

}  // namespace mk::dsv4
