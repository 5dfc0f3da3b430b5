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

// Gives the experts of a layer back when the layer is done with them.
class Lease {
 public:
  Lease(ExpertStore& store, size_t layer, std::span<const uint32_t> experts)
      : store_(store), layer_(layer), experts_(experts) {}
  ~Lease() { store_.Release(layer_, experts_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  ExpertStore& store_;
  size_t layer_;
  std::span<const uint32_t> experts_;
};

// Picks and weights of every row, and the shared experts' activations.
Status RouteRows(const K3Shape& shape, const MoeWeights& weights, size_t layer, const Batch& batch,
                 const MoeScratch& s) {
  const size_t k = shape.top_k;
  const size_t inner = shape.shared_inner;
  std::atomic<bool> finite{true};
  Status done = ForRows(batch.pool, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      float* in = s.input + row * shape.moe_input_rows();
      if (!Route({in, shape.experts}, weights.bias, shape.routed_scale, s.picks.subspan(row * k, k),
                 s.weights.subspan(row * k, k))) {
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

void ReportPicks(const K3Shape& shape, size_t layer, const Batch& batch, const MoeScratch& s) {
  for (const BatchItem& item : batch.items) {
    for (size_t t = 0; t < item.tokens; ++t) {
      const size_t at = (item.first_row + t) * shape.top_k;
      batch.observer->OnRouter(item.index, item.position + t, layer,
                               s.picks.subspan(at, shape.top_k),
                               s.weights.subspan(at, shape.top_k));
    }
  }
}

// The first slot of every active expert, and behind the last one the number of slots.
void CountSlots(const MoeScratch& s, size_t active) {
  size_t slot = 0;
  for (size_t a = 0; a < active; ++a) {
    const uint32_t count = s.count[s.active[a]];
    s.first[a] = static_cast<uint32_t>(slot);
    slot += count;
  }
  s.first[active] = static_cast<uint32_t>(slot);
}

// Sorts the picks of all rows by expert, rows ascending: a slot for every pick. Returns the experts
// in use, ascending; `count` is zero before and after.
std::span<const uint32_t> GroupByExpert(const MoeScratch& s) {
  size_t active = 0;
  for (const int32_t pick : s.picks) {
    const auto expert = static_cast<uint32_t>(pick);
    if (s.count[expert]++ == 0) s.active[active++] = expert;
  }
  std::sort(s.active.begin(), s.active.begin() + static_cast<std::ptrdiff_t>(active));
  CountSlots(s, active);
  for (size_t a = 0; a < active; ++a) s.count[s.active[a]] = s.first[a];  // next free slot
  for (size_t i = 0; i < s.picks.size(); ++i) {
    s.slots[i] = s.count[static_cast<size_t>(s.picks[i])]++;
  }
  for (size_t a = 0; a < active; ++a) s.count[s.active[a]] = 0;
  return s.active.first(active);
}

// Copies row `from` of one to row `to` of the other.
void CopyRow(const Activations& source, size_t from, const Activations& target, size_t to) {
  std::copy_n(source.row(from), source.width, target.row(to));
  if (source.q8.high.values == nullptr) return;
  const Q8Rows in = source.q8.high.From(from);
  const Q8Rows out = target.q8.high.From(to);
  std::copy_n(in.values, in.groups * kQ8Group, out.values);
  std::copy_n(in.scales, in.groups, out.scales);
  std::copy_n(in.offsets, in.groups, out.offsets);
}

// h of every pick, copied to the pick's slot.
Status Gather(const K3Shape& shape, const Batch& batch, const MoeScratch& s) {
  return ForRows(batch.pool, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      for (size_t i = row * shape.top_k; i < (row + 1) * shape.top_k; ++i) {
        CopyRow(s.routed, row, s.latent, s.slots[i]);
      }
    }
  });
}

ExpertJob Product(const ExpertMatrix& w, const Activations& x, float* y, size_t n) {
  return {w, x.values, x.ld, y, w.rows, n, x.q8.high};
}

// W2 situ(W1 h, W3 h) of every slot.
Status RunExperts(const K3Shape& shape, std::span<const uint32_t> active, const Batch& batch,
                  const MoeScratch& s) {
  const size_t m = shape.routed_width;
  const size_t inner = shape.expert_inner;
  const auto slot_count = [&](size_t a) -> size_t { return s.first[a + 1] - s.first[a]; };
  size_t n = 0;
  for (size_t a = 0; a < active.size(); ++a) {
    const size_t first = s.first[a];
    const Activations x = s.latent.From(first);
    const size_t count = slot_count(a);
    s.jobs[n++] = Product(s.experts[a].gate, x, s.gate.row(first), count);
    s.jobs[n++] = Product(s.experts[a].up, x, s.up + first * inner, count);
  }
  const std::span<ExpertJob> inputs = s.jobs.first(n);
  n = 0;
  for (size_t a = 0; a < active.size(); ++a) {
    const size_t first = s.first[a];
    s.down_jobs[n++] =
        Product(s.experts[a].down, s.gate.From(first), s.output + first * m, slot_count(a));
  }
  const std::span<ExpertJob> outputs = s.down_jobs.first(n);
  if (Status done = ParallelExpertMatMul(batch.pool, inputs, outputs); !done) return done;
  Status activated = ForRows(batch.pool, s.picks.size(), [&](size_t begin, size_t end) {
    const size_t floats = (end - begin) * inner;
    float* gate = s.gate.row(begin);
    Situ({gate, floats}, {s.up + begin * inner, floats}, shape.situ, {gate, floats});
    s.gate.Seal(begin, end);
  });
  if (!activated) return activated;
  return ParallelExpertMatMul(batch.pool, outputs);
}

// Weighted sum of a row's experts in the order of its picks, normalised.
Status Combine(const K3Shape& shape, const MoeWeights& weights, const Batch& batch,
               const MoeScratch& s) {
  const size_t m = shape.routed_width;
  return ForRows(batch.pool, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> sum(s.mixed.row(row), m);
      for (size_t j = 0; j < shape.top_k; ++j) {
        const size_t i = row * shape.top_k + j;
        const std::span<const float> part(s.output + s.slots[i] * m, m);
        if (j == 0) {
          Scale(s.weights[i], part, sum);
        } else {
          Axpy(s.weights[i], part, sum);
        }
      }
      RmsNorm(sum, weights.routed_norm, shape.epsilon, sum);
    }
    s.mixed.Seal(begin, end);
  });
}

}  // namespace

MoeScratch::MoeScratch(const K3Shape& shape, const Batch& batch) {
  ScratchArena& arena = batch.scratch;
  const size_t slots_count = batch.rows * shape.top_k;
  input = arena.Allocate<float>(batch.rows * shape.moe_input_rows()).data();
  routed = Activations::Of(batch, input + shape.experts, shape.routed_width, shape.moe_input_rows(),
                           batch.rows);
  shared_inner = Activations::NewWide(batch, shape.shared_inner);
  shared = arena.Allocate<float>(batch.rows * shape.hidden).data();
  mixed = Activations::NewWide(batch, shape.routed_width);
  picks = arena.Allocate<int32_t>(slots_count);
  weights = arena.Allocate<float>(slots_count);
  slots = arena.Allocate<uint32_t>(slots_count);
  count = arena.Allocate<uint32_t>(shape.experts);
  std::fill(count.begin(), count.end(), 0);
  first = arena.Allocate<uint32_t>(shape.experts + 1);
  active = arena.Allocate<uint32_t>(shape.experts);
  experts = arena.Allocate<ExpertWeights>(shape.experts);
  jobs = arena.Allocate<ExpertJob>(2 * shape.experts);
  down_jobs = arena.Allocate<ExpertJob>(shape.experts);
  const auto by_slot = [&](size_t width) {
    float* values = arena.Allocate<float>(slots_count * width).data();
    return Activations::Of(batch, values, width, width, slots_count);
  };
  latent = by_slot(shape.routed_width);
  gate = by_slot(shape.expert_inner);
  up = arena.Allocate<float>(slots_count * shape.expert_inner).data();
  output = arena.Allocate<float>(slots_count * shape.routed_width).data();
}

Status MoeForward(const K3Shape& shape, const MoeWeights& weights, size_t layer, ExpertStore& store,
                  const Batch& batch, const MoeScratch& s, const Activations& x, float* y) {
  const size_t d = shape.hidden;
  const MatMulJob inputs[] = {
      x.Times(weights.router, s.input, shape.moe_input_rows(), batch.rows),
      x.TimesNarrow(weights.input, s.input + shape.experts, shape.moe_input_rows(), batch.rows)};
  if (Status done = ParallelMatMul(batch.pool, inputs); !done) return done;
  if (Status done = RouteRows(shape, weights, layer, batch, s); !done) return done;
  if (batch.observer != nullptr) ReportPicks(shape, layer, batch, s);

  const std::span<const uint32_t> active = GroupByExpert(s);
  store.Prefetch(layer, active);
  if (Status done = Gather(shape, batch, s); !done) return done;
  if (Status held = store.Acquire(layer, active, s.experts.first(active.size())); !held) {
    return held;
  }
  {
    const Lease lease(store, layer, active);
    if (Status done = RunExperts(shape, active, batch, s); !done) return done;
  }
  if (Status done = Combine(shape, weights, batch, s); !done) return done;

  const MatMulJob outputs[] = {s.mixed.Times(weights.routed_up, y, d, batch.rows),
                               s.shared_inner.Times(weights.shared_down, s.shared, d, batch.rows)};
  if (Status done = ParallelMatMul(batch.pool, outputs); !done) return done;
  return ForRows(batch.pool, batch.rows, [&](size_t begin, size_t end) {
    const std::span<float> sum(y + begin * d, (end - begin) * d);
    Add(sum, {s.shared + begin * d, (end - begin) * d}, sum);
  });
}

}  // namespace mk::k3
