#include "engine/k3/feed_forward.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/matmul.h"

namespace mk::k3 {

DenseScratch::DenseScratch(const K3Shape& shape, const Batch& batch)
    : input(batch.scratch.Allocate<float>(batch.rows * 2 * shape.dense_inner).data()),
      inner(Activations::NewWide(batch, shape.dense_inner)) {}

Status DenseForward(const K3Shape& shape, const DenseWeights& weights, const Batch& batch,
                    const DenseScratch& scratch, const Activations& x, float* y) {
  const size_t width = shape.dense_inner;
  const MatMulJob input = x.TimesNarrow(weights.input, scratch.input, 2 * width, batch.rows);
  if (Status done = ParallelMatMul(batch.pool, {&input, 1}); !done) return done;
  Status activated = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const float* gate = scratch.input + row * 2 * width;
      Situ({gate, width}, {gate + width, width}, shape.situ, {scratch.inner.row(row), width});
    }
    scratch.inner.Seal(begin, end);
  });
  if (!activated) return activated;
  const MatMulJob output = scratch.inner.Times(weights.output, y, shape.hidden, batch.rows);
  return ParallelMatMul(batch.pool, {&output, 1});
}

}  // namespace mk::k3
