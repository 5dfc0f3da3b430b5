#include "engine/k3/residual.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

// Candidates whose scores fit on the stack; a model of 4096 layers in blocks of one needs no more.
constexpr size_t kMaxCandidates = 4098;

}  // namespace

Residual::Residual(const K3Shape& shape, const Batch& batch)
    : width_(shape.hidden), rows_(batch.rows), epsilon_(shape.epsilon) {
  const size_t blocks = (shape.layers + shape.residual_block - 1) / shape.residual_block;
  buffers_ = batch.scratch.Allocate<float*>(blocks + 1);
  for (float*& buffer : buffers_) {
    buffer = batch.scratch.Allocate<float>(rows_ * width_).data();
  }
  inverse_rms_ = batch.scratch.Allocate<float>((blocks + 1) * rows_);
  pending_ = batch.scratch.Allocate<float>(rows_ * width_).data();
  partial_ = buffers_[0];
}

float* Residual::NextOutput() {
  if (starts_anew_) {
    starts_anew_ = false;
    return partial_;
  }
  has_pending_ = true;
  return pending_;
}

void Residual::CloseBlock() {
  ++closed_;
  partial_ = buffers_[closed_];
  starts_anew_ = true;
}

bool Residual::SettleRow(size_t row) {
  const std::span<float> p(partial_ + row * width_, width_);
  if (has_pending_) Add(p, {pending_ + row * width_, width_}, p);
  const float squares = SumSquares(p);
  inverse_rms_[closed_ * rows_ + row] =
      1.0f / std::sqrt(squares / static_cast<float>(width_) + epsilon_);
  return std::isfinite(squares);
}

std::span<const float> Residual::Mix(size_t row, std::span<const float> mix_weight,
                                     std::span<float> out) const {
  const auto candidate = [&](size_t j) {
    return std::span<const float>(buffers_[j] + row * width_, width_);
  };
  if (closed_ == 0) return candidate(0);
  float scores[kMaxCandidates];
  for (size_t j = 0; j <= closed_; ++j) {
    scores[j] = Dot(candidate(j), mix_weight) * inverse_rms_[j * rows_ + row];
  }
  Softmax({scores, closed_ + 1});
  Scale(scores[0], candidate(0), out);
  for (size_t j = 1; j <= closed_; ++j) Axpy(scores[j], candidate(j), out);
  return out;
}

void Residual::MixRow(size_t row, std::span<const float> mix_weight, std::span<const float> norm,
                      float* out) const {
  const std::span<float> y(out, width_);
  RmsNorm(Mix(row, mix_weight, y), norm, epsilon_, y);
}

Result<bool> Residual::MixAndNorm(const Batch& batch, std::span<const float> mix_weight,
                                  std::span<const float> norm, const Activations& out) {
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, rows_, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      if (!SettleRow(row)) finite.store(false, std::memory_order_relaxed);
      MixRow(row, mix_weight, norm, out.row(row));
    }
    out.Seal(begin, end);
  });
  if (!done) return Fail(done.error());
  has_pending_ = false;
  return finite.load();
}

Status Residual::MixRows(const Batch& batch, std::span<const size_t> rows,
                         std::span<const float> mix_weight, std::span<const float> norm,
                         const Activations& out) {
  return ForRows(batch, rows.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) MixRow(rows[i], mix_weight, norm, out.row(i));
    out.Seal(begin, end);
  });
}

Status Residual::MixAll(const Batch& batch, std::span<const float> mix_weight, float* out) const {
  return ForRows(batch, rows_, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> y(out + row * width_, width_);
      const std::span<const float> mixed = Mix(row, mix_weight, y);
      if (mixed.data() != y.data()) std::copy(mixed.begin(), mixed.end(), y.begin());
    }
  });
}

Result<bool> Residual::Settle(const Batch& batch) {
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, rows_, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      if (!SettleRow(row)) finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!done) return Fail(done.error());
  has_pending_ = false;
  return finite.load();
}

}  // namespace mk::k3
