#include "engine/dsv4/mixer.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/kernels/activations.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/stream_mix.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

// A fixed number of streams lets the compiler keep the matrix in registers.
template <size_t kStreams>
void Balance(float* c, size_t any_streams, size_t iterations, float e) {
  const size_t n = kStreams > 0 ? kStreams : any_streams;
  const auto scale_rows = [&] {
    for (size_t a = 0; a < n; ++a) {
      float sum = 0;
      for (size_t b = 0; b < n; ++b) sum += c[a * n + b];
      const float inverse = 1.0f / (sum + e);
      for (size_t b = 0; b < n; ++b) c[a * n + b] *= inverse;
    }
  };
  const auto scale_columns = [&] {
    float inverse[kMaxStreams] = {};
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) inverse[b] += c[a * n + b];
    }
    for (size_t b = 0; b < n; ++b) inverse[b] = 1.0f / (inverse[b] + e);
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) c[a * n + b] *= inverse[b];
    }
  };
  scale_columns();
  for (size_t i = 1; i < iterations; ++i) {
    scale_rows();
    scale_columns();
  }
}

// h = sum_j pre_j X_j of one token, pre from the mixer of the head. x: [S][d].
void MixRowForHead(const Dsv4Shape& shape, const Dsv4Weights& weights, std::span<const float> x,
                   std::span<float> h) {
  const size_t n = shape.streams;
  float numbers[kMaxStreams];
  // Rows that are wanted may lie anywhere: one product each.
  MatMul({weights.head_read, x.data(), x.size(), numbers, n, 1});
  const float mean = SumSquares(x) / static_cast<float>(x.size());
  const float inverse_rms = 1.0f / std::sqrt(mean + shape.epsilon);
  for (size_t j = 0; j < n; ++j) {
    numbers[j] = numbers[j] * inverse_rms * weights.head_scale[0] + weights.head_base[j];
  }
  Sigmoid({numbers, n}, {numbers, n});
  for (size_t j = 0; j < n; ++j) numbers[j] += shape.mix_epsilon;
  ReadStreams(x, {numbers, n}, h);
}

void ReadRowForHead(const Dsv4Shape& shape, const Dsv4Weights& weights, std::span<const float> x,
                    std::span<float> h) {
  MixRowForHead(shape, weights, x, h);
  RmsNorm(h, weights.final_norm, shape.epsilon, h);
}

}  // namespace

void Sinkhorn(std::span<float> c, size_t streams, size_t iterations, float e) {
  for (size_t a = 0; a < streams; ++a) {
    const std::span<float> row = c.subspan(a * streams, streams);
    Softmax(row);
    for (float& value : row) value += e;
  }
  if (streams == 4) {
    Balance<4>(c.data(), streams, iterations, e);
  } else {
    Balance<0>(c.data(), streams, iterations, e);
  }
}

Streams::Streams(const Dsv4Shape& shape, const Batch& batch)
    : shape_(shape),
      width_(shape.stream_floats()),
      values_(batch.scratch.Allocate<float>(batch.rows * width_).data()),
      numbers_(batch.scratch.Allocate<float>(batch.rows * shape.mixer_rows()).data()),
      post_(batch.scratch.Allocate<float>(batch.rows * shape.streams).data()) {}

void Streams::Weigh(const MixerWeights& weights, size_t row, float inverse_rms,
                    std::span<float> pre) {
  const size_t n = shape_.streams;
  float* const m = numbers_ + row * shape_.mixer_rows();
  for (size_t i = 0; i < shape_.mixer_rows(); ++i) {
    const float scale = weights.scale[i < n ? 0 : i < 2 * n ? 1 : 2];
    m[i] = m[i] * inverse_rms * scale + weights.base[i];
  }
  Sigmoid({m, 2 * n}, {m, 2 * n});
  for (size_t j = 0; j < n; ++j) {
    pre[j] = m[j] + shape_.mix_epsilon;
    post_[row * n + j] = 2.0f * m[n + j];
  }
  Sinkhorn({m + 2 * n, n * n}, n, shape_.sinkhorn_iterations, shape_.mix_epsilon);
}

Result<bool> Streams::Read(const Batch& batch, const MixerWeights& weights,
                           std::span<const float> norm, const Activations& out) {
  const MatMulJob job{weights.numbers, values_, width_, numbers_, shape_.mixer_rows(), batch.rows};
  if (Status done = ParallelMatMul(batch.pool, {&job, 1}); !done) return Fail(done.error());
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float squares = SumSquares(row(i));
      if (!std::isfinite(squares)) finite.store(false, std::memory_order_relaxed);
      const float mean = squares / static_cast<float>(width_);
      float pre[kMaxStreams];
      const std::span<float> read(pre, shape_.streams);
      Weigh(weights, i, 1.0f / std::sqrt(mean + shape_.epsilon), read);
      const std::span<float> u(out.row(i), shape_.hidden);
      ReadStreams(row(i), read, u);
      RmsNorm(u, norm, shape_.epsilon, u);
    }
    out.Seal(begin, end);
  });
  if (!done) return Fail(done.error());
  return finite.load();
}

Status Streams::Write(const Batch& batch, const float* y) {
  const size_t n = shape_.streams;
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const float* comb = numbers_ + i * shape_.mixer_rows() + 2 * n;
      WriteStreams({y + i * shape_.hidden, shape_.hidden}, {post_ + i * n, n}, {comb, n * n},
                   row(i));
    }
  });
}

Status Streams::ReadForHead(const Batch& batch, const Dsv4Weights& weights,
                            std::span<const size_t> rows, const Activations& out) {
  return ForRows(batch, rows.size(), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ReadRowForHead(shape_, weights, row(rows[i]), {out.row(i), shape_.hidden});
    }
    out.Seal(begin, end);
  });
}

Status Streams::MixForHead(const Batch& batch, const Dsv4Weights& weights, float* out) const {
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      MixRowForHead(shape_, weights, {values_ + i * width_, width_},
                    {out + i * shape_.hidden, shape_.hidden});
    }
  });
}

Status ReadForHead(const Dsv4Shape& shape, const Dsv4Weights& weights, const BatchRows& batch,
                   std::span<const float> streams, const Activations& out) {
  const size_t width = shape.stream_floats();
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ReadRowForHead(shape, weights, streams.subspan(i * width, width), {out.row(i), shape.hidden});
    }
    out.Seal(begin, end);
  });
}

Result<bool> Streams::Finite(const Batch& batch) const {
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(Sum(row(i)))) finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!done) return Fail(done.error());
  return finite.load();
}

}  // namespace mk::dsv4
