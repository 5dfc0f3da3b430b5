#include "engine/dsv4/moe_layer.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "engine/dsv4/router.h"
#include "engine/kernels/gates.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

// Picks and weights of every row, and the shared expert's activation.
Status RouteRows(const Dsv4Shape& shape, const MoeWeights& weights, size_t layer,
                 std::span<const int32_t> table, std::span<const int32_t> tokens,
                 const Batch& batch, const MoeScratch& s) {
  const size_t k = shape.top_k;
  const size_t inner = shape.expert_inner;
  std::atomic<bool> finite{true};
  Status done = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> logits(s.logits + row * shape.experts, shape.experts);
      const std::span<int32_t> picks = s.experts.picks(row);
      const std::span<float> shares = s.experts.weights(row);
      const bool good =
          table.empty()
              ? RouteByScore(logits, weights.bias, shape.routed_scale, picks, shares)
              : RouteByTable(logits, table.subspan(static_cast<size_t>(tokens[row]) * k, k),
                             shape.routed_scale, picks, shares);
      if (!good) finite.store(false, std::memory_order_relaxed);
      const float* gate = s.shared_input + row * 2 * inner;
      ClampedSwiglu({gate, inner}, {gate + inner, inner}, 1.0f, shape.swiglu_limit,
                    {s.shared_inner.row(row), inner});
    }
    s.shared_inner.Seal(begin, end);
  });
  if (!done) return done;
  if (!finite.load()) {
    return Fail(ErrorCode::kNumeric, "non-finite router logits, layer " + std::to_string(layer),
                "the weights of the model or the state of the sequence are damaged");
  }
  return {};
}

}  // namespace

MoeScratch::MoeScratch(const Dsv4Shape& shape, const ExpertShape& expert_shape, const Batch& batch)
    : logits(batch.scratch.Allocate<float>(batch.rows * shape.experts).data()),
      shared_input(batch.scratch.Allocate<float>(batch.rows * 2 * shape.expert_inner).data()),
      shared_inner(Activations::NewWide(batch, shape.expert_inner)),
      experts(expert_shape, shape.top_k, batch),
      lookahead(expert_shape.experts, shape.top_k, batch) {}

Status MoeForward(const Dsv4Shape& shape, const MoeWeights& weights, const MoeWeights* next,
                  size_t layer, std::span<const int32_t> table, std::span<const int32_t> tokens,
                  ExpertStore& store, const Batch& batch, const MoeScratch& s, const Activations& x,
                  float* y) {
  const size_t d = shape.hidden;
  const MatMulJob inputs[] = {
      x.Times(weights.router, s.logits, shape.experts, batch.rows),
      x.TimesNarrow(weights.shared_input, s.shared_input, 2 * shape.expert_inner, batch.rows)};
  if (Status done = ParallelMatMul(batch.pool, inputs); !done) return done;
  Status routed = RouteRows(shape, weights, layer, table, tokens, batch, s);
  if (!routed) return routed;
  if (batch.expert_use != nullptr) s.experts.CountUse(batch.items, *batch.expert_use);
  if (batch.observer != nullptr) s.experts.Report(batch.items, layer, *batch.observer);

  const auto activate = [&](const RoutedExperts::Slots& slots) {
    for (size_t i = 0; i < slots.weights.size(); ++i) {
      const std::span<float> gate = slots.gate.subspan(i * slots.inner, slots.inner);
      ClampedSwiglu(gate, slots.up.subspan(i * slots.inner, slots.inner), slots.weights[i],
                    shape.swiglu_limit, gate);
    }
  };
  const auto look_ahead = [&] {
    if (next == nullptr) return;
    s.lookahead.Run(
        store, layer + 1, batch, x, next->router,
        [&](std::span<float> scores, std::span<int32_t> picks, std::span<float> shares) {
          return RouteByScore(scores, next->bias, shape.routed_scale, picks, shares);
        });
  };
  Status ran = s.experts.Run(store, layer, batch, x, activate, look_ahead);
  if (!ran) return ran;

  // y holds the shared expert until the routed ones are summed up.
  const MatMulJob shared = s.shared_inner.Times(weights.shared_output, y, d, batch.rows);
  if (Status done = ParallelMatMul(batch.pool, {&shared, 1}); !done) return done;
  return ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> sum = s.experts.output(row, 0);
      for (size_t j = 1; j < shape.top_k; ++j) Add(sum, s.experts.output(row, j), sum);
      const std::span<float> out(y + row * d, d);
      Add(sum, out, out);
    }
  });
}

}  // namespace mk::dsv4
