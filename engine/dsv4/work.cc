// What a token of a DeepSeek-V4 model costs: counted over the matrices of a prepared spine.

#include <algorithm>

#include "engine/dsv4/dsv4_model.h"
#include "engine/dsv4/weights.h"

namespace mk::dsv4 {
namespace {

// Adds up what a decoded token reads and multiplies. The structs are taken apart in full: one that
// gains a member does not compile until it is counted here.
class Count {
 public:
  uint64_t bytes() const { return bytes_; }
  uint64_t multiply_adds() const { return multiply_adds_; }

  void Add(const PackedMatrix& w) {
    bytes_ += PackedBytes(w.kind, w.rows, w.cols);
    multiply_adds_ += uint64_t{w.rows} * w.cols;
  }
  // Gains, biases and the like: one operation per value.
  void Add(Vector values) {
    bytes_ += values.size_bytes();
    multiply_adds_ += values.size();
  }

  void Add(const MixerWeights& w) {
    const auto& [numbers, base, scale] = w;
    Add(numbers);
    Add(base);
    Add(scale);
  }

  // A token reads the bias of one slot; groups are closed once in r tokens.
  void Add(const CompressorWeights& w, size_t ratio) {
    const auto& [slot_bias, norm] = w;
    if (ratio == 0) return;
    Add(slot_bias.first(slot_bias.size() / ratio));
    Add(norm);
  }

  void Add(const AttentionWeights& w, size_t ratio) {
    const auto& [input, query_norm, query, key_norm, sink, compressor, index_compressor, group,
                 output] = w;
    Add(input);
    Add(query_norm);
    Add(query);
    Add(key_norm);
    Add(sink);
    Add(compressor, ratio);
    Add(index_compressor, ratio);
    for (const PackedMatrix& matrix : group) Add(matrix);
    Add(output);
  }

  void Add(const MoeWeights& w) {
    const auto& [router, bias, shared_input, shared_output] = w;
    Add(router);
    Add(bias);
    Add(shared_input);
    Add(shared_output);
  }

  void Add(const LayerWeights& w, size_t ratio) {
    const auto& [attention_mixer, ffn_mixer, attention_norm, ffn_norm, attention, moe] = w;
    Add(attention_mixer);
    Add(ffn_mixer);
    Add(attention_norm);
    Add(ffn_norm);
    Add(attention, ratio);
    Add(moe);
  }

 private:
  uint64_t bytes_ = 0;
  uint64_t multiply_adds_ = 0;
};

// What every token of context adds to a layer's work: 1/r of a compressed row, which all heads or
// (indexed layers, beyond the rows that are picked) the indexer's heads multiply.
void AddContext(const Dsv4Shape& shape, size_t layer, uint64_t& bytes, uint64_t& multiply_adds) {
  const size_t ratio = shape.ratio[layer];
  if (ratio == 0) return;
  if (shape.indexed(layer)) {
    bytes += shape.key_tile_bytes() / kPageRows / ratio;
    multiply_adds += shape.index_width() / ratio;
  } else {
    bytes += shape.cached_row().bytes() / ratio;
    multiply_adds += 2 * shape.heads_width() / ratio;
  }
}

}  // namespace

TokenWork Dsv4Model::CountWork(const SpineWeights& spine) const {
  const auto& weights = static_cast<const Dsv4Weights&>(spine);
  const Dsv4Shape& shape = *shape_;
  Count head;
  head.Add(weights.head);
  Count rest;
  rest.Add(weights.final_norm);
  rest.Add(weights.head_read);
  rest.Add(weights.head_base);
  rest.Add(weights.head_scale);
  TokenWork work;
  for (size_t l = 0; l < shape.layers; ++l) {
    rest.Add(weights.layers[l], shape.ratio[l]);
    AddContext(shape, l, work.context_bytes, work.context_multiply_adds);
  }
  work.spine_bytes = rest.bytes() + head.bytes() + shape.hidden * sizeof(float);
  // The window is read whole by every token.
  work.multiply_adds =
      rest.multiply_adds() + 2 * uint64_t{shape.layers} * shape.window * shape.heads_width();
  work.head_multiply_adds = head.multiply_adds();
  return work;
}

}  // namespace mk::dsv4
