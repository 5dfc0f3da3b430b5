// Attention residuals: the residual stream of K3 as a softmax-weighted mix of earlier blocks.
//
// Layers form blocks of b. Per token there is a list of closed block vectors and a running partial
// sum p. What a layer reads is
//
//   mix([c_1 .. c_N], w) = sum_j alpha_j c_j,  alpha = softmax_j( (c_j . w) / rms(c_j) )
//
// over the closed blocks in order of age and p as the last candidate; rms(c) = sqrt(mean(c^2)+eps).
// A layer whose index is a multiple of b closes the block after its input was mixed: p joins the
// blocks and the sum starts anew with the layer's attention output.
//
// The list belongs to one forward pass; nothing of it stays in a sequence.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/k3/batch.h"
#include "engine/k3/shape.h"

namespace mk::k3 {

class Residual {
 public:
  // Scratch for `batch.rows` rows.
  Residual(const K3Shape& shape, const Batch& batch);

  // The partial sum, [rows][d]; before the first layer, where the embeddings go.
  float* partial() { return partial_; }
  // Where the output of the next part goes: the partial sum itself right after a block was
  // closed, else a buffer that the next Mix adds to it. [rows][d].
  float* NextOutput();
  // Adds the output that is still apart, mixes with `mix_weight`, normalises with `norm` and
  // writes [rows][d] to `out`, sealed. With no block closed yet the mix is the partial sum.
  // Returns whether the partial sum is finite in every row.
  Result<bool> MixAndNorm(const Batch& batch, std::span<const float> mix_weight,
                          std::span<const float> norm, const Activations& out);
  // The same for some rows only, after the last layer: row i of `out` comes from rows[i].
  Status MixRows(const Batch& batch, std::span<const size_t> rows,
                 std::span<const float> mix_weight, std::span<const float> norm,
                 const Activations& out);
  // The mix of every row before it is normalised, after the last layer: [rows][d] to `out`.
  Status MixAll(const Batch& batch, std::span<const float> mix_weight, float* out) const;
  // Adds the output that is still apart. Returns whether the partial sum is finite in every row.
  Result<bool> Settle(const Batch& batch);
  void CloseBlock();

 private:
  bool SettleRow(size_t row);
  // The mix of a row: where it lies, or what it was written to.
  std::span<const float> Mix(size_t row, std::span<const float> mix_weight,
                             std::span<float> out) const;
  void MixRow(size_t row, std::span<const float> mix_weight, std::span<const float> norm,
              float* out) const;

  const size_t width_;
  const size_t rows_;
  const float epsilon_;
  size_t closed_ = 0;             // blocks
  std::span<float*> buffers_;     // [max blocks + 1]: closed blocks, then the partial sum
  std::span<float> inverse_rms_;  // [max blocks + 1][rows] of the same
  float* partial_;
  float* pending_;  // [rows][d], an output that is not yet added
  bool has_pending_ = false;
  bool starts_anew_ = false;
};

}  // namespace mk::k3
