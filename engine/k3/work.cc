// What a token of a K3 model costs: counted over the matrices of a prepared spine, so that it holds
// for whatever forms a precision keeps them in.

#include <algorithm>
#include <vector>

#include "engine/k3/k3_model.h"
#include "engine/k3/weights.h"
#include "engine/kernels/latent_bytes.h"

namespace mk::k3 {
namespace {

// Adds up what a decoded token reads and multiplies.
class Count {
 public:
  explicit Count(const K3Shape& shape) : shape_(shape) {}

  uint64_t bytes() const { return bytes_; }
  uint64_t multiply_adds() const { return multiply_adds_; }

  void Add(const PackedMatrix& w) {
    bytes_ += PackedBytes(w.kind, w.rows, w.cols);
    multiply_adds_ += uint64_t{w.rows} * w.cols;
  }
  void Add(const std::vector<PackedMatrix>& heads) {
    for (const PackedMatrix& w : heads) Add(w);
  }
  // Gains, biases and the like: one operation per value.
  void Add(Vector values) {
    bytes_ += values.size_bytes();
    multiply_adds_ += values.size();
  }

  // The structs are taken apart in full: one that gains a member does not compile until it is
  // counted here.

  // Per head the recurrence decays the D x D state, reads it with the key, adds the write, and
  // reads it with the query: four operations per element.
  void Add(const KdaWeights& w) {
    const auto& [input, decay, output, conv, decay_bias, decay_rate, norm] = w;
    Add(input);
    Add(decay);
    Add(output);
    Add(Vector{conv, 3 * shape_.conv_taps * shape_.kda_width});
    Add(decay_bias);
    Add(decay_rate);
    Add(norm);
    multiply_adds_ += 4 * uint64_t{shape_.kda_width} * shape_.kda_dim;
  }

  void Add(const MlaWeights& w) {
    const auto& [input, query, output, key, key_transposed, value, query_norm, latent_norm] = w;
    static_cast<void>(key);  // for expanded caches only
    Add(input);
    Add(query);
    Add(output);
    Add(key_transposed);
    Add(value);
    Add(query_norm);
    Add(latent_norm);
  }

  void Add(const DenseWeights& w) {
    const auto& [input, output] = w;
    Add(input);
    Add(output);
  }

  void Add(const MoeWeights& w) {
    const auto& [router, input, routed_up, shared_down, bias, routed_norm] = w;
    Add(router);
    Add(input);
    Add(routed_up);
    Add(shared_down);
    Add(bias);
    Add(routed_norm);
  }

  void AddLayer(size_t l, const LayerWeights& w) {
    const auto& [input_norm, post_norm, attention_mix, mlp_mix, kda, mla, dense, moe] = w;
    Add(input_norm);
    Add(post_norm);
    Add(attention_mix);
    Add(mlp_mix);
    if (shape_.attention[l] == AttentionKind::kKda) {
      Add(kda);
    } else {
      Add(mla);
    }
    if (shape_.feed_forward[l] == FeedForwardKind::kDense) {
      Add(dense);
    } else {
      Add(moe);
    }
  }

 private:
  const K3Shape& shape_;
  uint64_t bytes_ = 0;
  uint64_t multiply_adds_ = 0;
};

// Multiply-adds per pair of positions, layer and head: over the latent rows, or over expanded keys
// and values, whichever is less.
uint64_t PairWork(const K3Shape& shape) {
  return std::min(shape.latent_row() + shape.kv_rank, shape.qk + shape.value);
}

}  // namespace

TokenWork K3Model::CountWork(const SpineWeights& spine) const {
  const auto& weights = static_cast<const K3Weights&>(spine);
  const K3Shape& shape = *shape_;
  Count head(shape);
  head.Add(weights.head);
  Count rest(shape);
  rest.Add(weights.final_norm);
  rest.Add(weights.output_mix);
  for (size_t l = 0; l < shape.layers; ++l) rest.AddLayer(l, weights.layers[l]);
  TokenWork work;
  work.spine_bytes = rest.bytes() + head.bytes() + shape.hidden * sizeof(float);
  work.multiply_adds = rest.multiply_adds();
  work.head_multiply_adds = head.multiply_adds();
  const LatentShape bytes{shape.kv_rank, shape.rope};
  work.context_bytes = weights.head.kind == WeightKind::kQ8
                           ? shape.mla_layers * bytes.tile_bytes() / kLatentTile
                           : info().bytes_per_token;
  work.context_multiply_adds = shape.mla_layers * shape.mla_heads * PairWork(shape);
  return work;
}

}  // namespace mk::k3
