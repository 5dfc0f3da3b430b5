#include <algorithm>
#include <atomic>
#include <string>

#include "engine/k3/feed_forward.h"
#include "engine/k3/router.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

// Picks and weights of every row, and the shared experts' activations.
Status RouteRows(const K3Shape& shape, const MoeWeights& weights, size_t layer, const Batch& batch,
                 const MoeScratch& s) {
  const size_t inner = shape.shared_inner;
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* in = s.input + row * shape.moe_input_rows();
      if (!Route({in, shape.experts}, weights.bias, shape.routed_scale, s.experts.picks(row),
                 s.experts.weights(row))) {
        finite.store(false, std::memory_order_relaxed);
      }
      const float* gate = in + shape.experts + shape.routed_width;
      Situ({gate, inner}, {gate + inner, inner}, shape.situ, {s.shared_inner.row(row), inner});
    }
    s.shared_inner.Seal(begin, end);
    s.routed.Seal(begin, end);
  });
  if (!done) return done;
  if (!finite.load()) {
    return Fail(ErrorCode::kNumeric, "non-finite router logits, layer " + std::to_string(layer),
                "the weights of the model or the state of the sequence are damaged");
  }
  return {};
}

// Weighted sum of a row's experts in the order of its picks, normalised.
Status Combine(const K3Shape& shape, const MoeWeights& weights, const Batch& batch,
               const MoeScratch& s) {
  const size_t m = shape.routed_width;
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> sum(s.mixed.row(row), m);
      for (size_t j = 0; j < shape.top_k; ++j) {
        const float weight = s.experts.weights(row)[j];
        if (j == 0) {
          Scale(weight, s.experts.output(row, j), sum);
        } else {
          Axpy(weight, s.experts.output(row, j), sum);
        }
      }
      RmsNorm(sum, weights.routed_norm, shape.epsilon, sum);
    }
    s.mixed.Seal(begin, end);
  });
}

}  // namespace

MoeScratch::MoeScratch(const K3Shape& shape, const ExpertShape& expert_shape, const Batch& batch)
    : input(batch.scratch.Allocate<float>(batch.rows * shape.moe_input_rows()).data()),
      routed(Activations::Of(batch, input + shape.experts, shape.routed_width,
                             shape.moe_input_rows(), batch.rows)),
      shared_inner(Activations::NewWide(batch, shape.shared_inner)),
      shared(batch.scratch.Allocate<float>(batch.rows * shape.hidden).data()),
      mixed(Activations::NewWide(batch, shape.routed_width)),
      experts(expert_shape, shape.top_k, batch),
      lookahead(expert_shape.experts, shape.top_k, batch) {}

Status MoeForward(const K3Shape& shape, const MoeWeights& weights, const MoeWeights* next,
                  size_t layer, ExpertStore& store, const Batch& batch, const MoeScratch& s,
                  const Activations& x, float* y) {
  const size_t d = shape.hidden;
  const MatMulJob inputs[] = {
      x.Times(weights.router, s.input, shape.moe_input_rows(), batch.rows),
      x.TimesNarrow(weights.input, s.input + shape.experts, shape.moe_input_rows(), batch.rows)};
  if (Status done = ParallelMatMul(batch.pool, inputs); !done) return done;
  if (Status done = RouteRows(shape, weights, layer, batch, s); !done) return done;
  if (batch.observer != nullptr) s.experts.Report(batch.items, layer, *batch.observer);
  if (batch.expert_use != nullptr) s.experts.CountUse(batch.items, *batch.expert_use);
  const auto activate = [&](const RoutedExperts::Slots& slots) {
    Situ(slots.gate, slots.up, shape.situ, slots.gate);
  };
  const auto look_ahead = [&] {
    if (next == nullptr) return;
    s.lookahead.Run(
        store, layer + 1, batch, x, next->router,
        [&](std::span<float> scores, std::span<int32_t> picks, std::span<float> shares) {
          return Route(scores, next->bias, shape.routed_scale, picks, shares);
        });
  };
  Status ran = s.experts.Run(store, layer, batch, s.routed, activate, look_ahead);
  if (!ran) return ran;
  if (Status done = Combine(shape, weights, batch, s); !done) return done;

  const MatMulJob outputs[] = {s.mixed.Times(weights.routed_up, y, d, batch.rows),
                               s.shared_inner.Times(weights.shared_down, s.shared, d, batch.rows)};
  if (Status done = ParallelMatMul(batch.pool, outputs); !done) return done;
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    const std::span<float> sum(y + begin * d, (end - begin) * d);
    Add(sum, {s.shared + begin * d, (end - begin) * d}, sum);
  });
}

}  // namespace mk::k3
