// Hyper-connections: several residual streams, which every part of a layer reads as one mix and
// writes back to as another. With X the S streams of a token, flattened to x:
//
//   m    = (F x) / sqrt(mean(x^2) + eps)                                (2 + S) S numbers
//   pre  = sigmoid(m[0..S) scale_0 + base) + e                          S
//   post = 2 sigmoid(m[S..2S) scale_1 + base)                           S
//   comb = sinkhorn(m[2S..) scale_2 + base)                             S x S
//   u    = sum_j pre_j X_j                       what the part reads (then normalised)
//   X_b <- post_b y + sum_a comb_ab X_a          with y, what the part gave
//
// e is the config's hc_eps. Before the head: h = sum_j pre_j X_j, pre made by a mixer of its own.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/dsv4/batch.h"
#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"

namespace mk::dsv4 {

// Makes c [S][S] nearly doubly stochastic. Rows: softmax, plus e; columns: divided by their sum
// plus e; then (iterations - 1) times rows and columns divided so.
void Sinkhorn(std::span<float> c, size_t streams, size_t iterations, float e);

// The residual streams of a batch and the mix in progress.
class Streams {
 public:
  // Scratch for `batch.rows` rows.
  Streams(const Dsv4Shape& shape, const Batch& batch);

  // The S streams of a row, [S][d].
  std::span<float> row(size_t i) const { return {values_ + i * width_, width_}; }
  // [rows][S][d]
  const float* values() const { return values_; }

  // What a part reads: the mix, normalised with `norm`, to `out` [rows][d], sealed. Returns whether
  // the streams are finite in every row.
  Result<bool> Read(const Batch& batch, const MixerWeights& weights, std::span<const float> norm,
                    const Activations& out);
  // Writes back what it gave, y [rows][d].
  Status Write(const Batch& batch, const float* y);
  // What the head reads of some rows: row i of `out` comes from rows[i]. Sealed.
  Status ReadForHead(const Batch& batch, const Dsv4Weights& weights, std::span<const size_t> rows,
                     const Activations& out);
  // The same of every row, not normalised: [rows][d] to `out`.
  Status MixForHead(const Batch& batch, const Dsv4Weights& weights, float* out) const;
  // Whether the streams are finite in every row.
  Result<bool> Finite(const Batch& batch) const;

 private:
  // Makes pre (to `pre`), post and comb of a row from its mixer numbers.
  void Weigh(const MixerWeights& weights, size_t row, float inverse_rms, std::span<float> pre);

  const Dsv4Shape& shape_;
  const size_t width_;  // S d
  float* values_;       // [rows][S][d]
  float* numbers_;      // [rows][(2 + S) S], of the mixer in progress; comb in its last S x S
  float* post_;         // [rows][S]
};

// What the head reads of streams that are given, [batch.rows][S][d]. Sealed.
Status ReadForHead(const Dsv4Shape& shape, const Dsv4Weights& weights, const BatchRows& batch,
                   std::span<const float> streams, const Activations& out);

}  // namespace mk::dsv4
