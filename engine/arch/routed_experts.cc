#include "engine/arch/routed_experts.h"

#include <algorithm>

namespace mk {
namespace {

// Weights of an expert up to which one worker does all of it. Larger ones are cut into slices: they
// are worth the barriers, and an expert more or less would upset the balance.
constexpr size_t kSmallExpert = size_t{256} << 10;
// About what one thread gets through.
constexpr uint64_t kWeightsPerNanosecond = 25;

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

// Copies row `from` of one to row `to` of the other, with the high bytes if there are any.
void CopyRow(const Activations& source, size_t from, const Activations& target, size_t to) {
  std::copy_n(source.row(from), source.width, target.row(to));
  if (source.q8.high.values == nullptr) return;
  const Q8Rows in = source.q8.high.From(from);
  const Q8Rows out = target.q8.high.From(to);
  std::copy_n(in.values, in.groups * kQ8Group, out.values);
  std::copy_n(in.scales, in.groups, out.scales);
  std::copy_n(in.offsets, in.groups, out.offsets);
}

ExpertJob Product(const ExpertMatrix& w, const Activations& x, float* y, size_t n) {
  return {w, x.values, x.ld, y, w.rows, n, x.q8.high};
}

void Prefetch(const ExpertWeights& weights) {
  PrefetchExpert(weights.gate);
  PrefetchExpert(weights.up);
  PrefetchExpert(weights.down);
}

}  // namespace

RoutedExperts::RoutedExperts(const ExpertShape& shape, size_t top_k, const BatchRows& batch)
    : width_(shape.width), inner_(shape.inner), top_k_(top_k) {
  ScratchArena& arena = batch.scratch;
  const size_t slot_count = batch.rows * top_k;
  picks_ = arena.Allocate<int32_t>(slot_count);
  weights_ = arena.Allocate<float>(slot_count);
  slots_ = arena.Allocate<uint32_t>(slot_count);
  rows_ = arena.Allocate<uint32_t>(slot_count);
  slot_weights_ = arena.Allocate<float>(slot_count);
  count_ = arena.Allocate<uint32_t>(shape.experts);
  std::fill(count_.begin(), count_.end(), 0);
  first_ = arena.Allocate<uint32_t>(shape.experts + 1);
  active_ = arena.Allocate<uint32_t>(shape.experts);
  last_item_ = arena.Allocate<uint32_t>(shape.experts);
  experts_ = arena.Allocate<ExpertWeights>(shape.experts);
  jobs_ = arena.Allocate<ExpertJob>(2 * shape.experts);
  down_jobs_ = arena.Allocate<ExpertJob>(shape.experts);
  const auto by_slot = [&](size_t width) {
    float* values = arena.Allocate<float>(slot_count * width).data();
    return Activations::Of(batch, values, width, width, slot_count);
  };
  input_ = by_slot(width_);
  gate_ = by_slot(inner_);
  up_ = arena.Allocate<float>(slot_count * inner_).data();
  output_ = arena.Allocate<float>(slot_count * width_).data();
}

// The first slot of every active expert, and behind the last one the number of slots.
void RoutedExperts::CountSlots(size_t active) const {
  size_t slot = 0;
  for (size_t a = 0; a < active; ++a) {
    const uint32_t count = count_[active_[a]];
    first_[a] = static_cast<uint32_t>(slot);
    slot += count;
  }
  first_[active] = static_cast<uint32_t>(slot);
}

// Sorts the picks of all rows by expert, rows ascending: a slot for every pick. Returns the experts
// in use, ascending; `count_` is zero before and after.
std::span<const uint32_t> RoutedExperts::GroupByExpert() const {
  size_t active = 0;
  for (const int32_t pick : picks_) {
    const auto expert = static_cast<uint32_t>(pick);
    if (count_[expert]++ == 0) active_[active++] = expert;
  }
  std::sort(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(active));
  CountSlots(active);
  for (size_t a = 0; a < active; ++a) count_[active_[a]] = first_[a];  // next free slot
  for (size_t i = 0; i < picks_.size(); ++i) {
    slots_[i] = count_[static_cast<size_t>(picks_[i])]++;
    rows_[slots_[i]] = static_cast<uint32_t>(i / top_k_);
    slot_weights_[slots_[i]] = weights_[i];
  }
  for (size_t a = 0; a < active; ++a) count_[active_[a]] = 0;
  return active_.first(active);
}

// The inputs of the expert's slots, next to each other.
Activations RoutedExperts::Gather(const Expert& expert, const Activations& x) const {
  if (expert.count == 1) return x.From(rows_[expert.first]);
  for (size_t slot = expert.first; slot < expert.first + expert.count; ++slot) {
    CopyRow(x, rows_[slot], input_, slot);
  }
  return input_.From(expert.first);
}

// The activation of slots [begin, end), in place of the gates.
void RoutedExperts::Activate(size_t begin, size_t end, Activation activation) const {
  const size_t floats = (end - begin) * inner_;
  activation({{gate_.row(begin), floats},
              {up_ + begin * inner_, floats},
              slot_weights_.subspan(begin, end - begin),
              inner_});
  gate_.Seal(begin, end);
}

// All of an expert. `next`: the one that the same worker takes after it, or null.
void RoutedExperts::RunExpert(const Expert& expert, const ExpertWeights* next, const Activations& x,
                              Activation activation) const {
  const Activations rows = Gather(expert, x);
  const auto multiply = [&](ExpertMatrix ExpertWeights::*part, const Activations& in, float* out) {
    const ExpertMatrix& w = expert.weights.*part;
    ExpertJob job = Product(w, in, out, expert.count);
    if (next != nullptr && (next->*part).kind == w.kind) job.ahead = (next->*part).packed;
    ExpertMatMul(job, 0, w.rows);
  };
  multiply(&ExpertWeights::gate, rows, gate_.row(expert.first));
  multiply(&ExpertWeights::up, rows, up_ + expert.first * inner_);
  Activate(expert.first, expert.first + expert.count, activation);
  multiply(&ExpertWeights::down, gate_.From(expert.first), output_ + expert.first * width_);
}

// True if experts are small and none of them has more than the share of a worker.
bool RoutedExperts::OneWorkerPerExpert(size_t active, size_t workers) const {
  if (3 * inner_ * width_ > kSmallExpert) return false;
  size_t most = 0;
  for (size_t a = 0; a < active; ++a) most = std::max(most, ExpertAt(a).count);
  return most * workers <= first_[active];
}

Status RoutedExperts::RunWhole(size_t active, const BatchRows& batch, const Activations& x,
                               Activation activation) const {
  const uint64_t nanoseconds = 3 * inner_ * width_ * first_[active] / kWeightsPerNanosecond;
  ThreadPool& pool = batch.pool;
  return pool.ParallelFor(active, nanoseconds, [&](size_t a, size_t) {
    if (pool.StartsRun(a, active)) Prefetch(experts_[a]);
    const bool goes_on = a + 1 < active && !pool.StartsRun(a + 1, active);
    RunExpert(ExpertAt(a), goes_on ? &experts_[a + 1] : nullptr, x, activation);
  });
}

// All workers on slices of the matrices.
Status RoutedExperts::RunSliced(size_t active, const BatchRows& batch, const Activations& x,
                                Activation activation) const {
  Status gathered = batch.pool.ParallelFor(active, [&](size_t a, size_t) {
    const Expert expert = ExpertAt(a);
    const Activations rows = Gather(expert, x);
    const size_t first = expert.first;
    const ExpertWeights& w = expert.weights;
    jobs_[2 * a] = Product(w.gate, rows, gate_.row(first), expert.count);
    jobs_[2 * a + 1] = Product(w.up, rows, up_ + first * inner_, expert.count);
    down_jobs_[a] = Product(w.down, gate_.From(first), output_ + first * width_, expert.count);
  });
  if (!gathered) return gathered;
  const std::span<const ExpertJob> outputs = down_jobs_.first(active);
  Status done = ParallelExpertMatMul(batch.pool, jobs_.first(2 * active), outputs);
  if (!done) return done;
  done = ForRows(batch, picks_.size(),
                 [&](size_t begin, size_t end) { Activate(begin, end, activation); });
  if (!done) return done;
  return ParallelExpertMatMul(batch.pool, outputs);
}

Status RoutedExperts::Run(ExpertStore& store, size_t layer, const BatchRows& batch,
                          const Activations& x, Activation activation) const {
  const std::span<const uint32_t> active = GroupByExpert();
  store.Prefetch(layer, active);
  if (Status held = store.Acquire(layer, active, experts_.first(active.size())); !held) {
    return held;
  }
  const Lease lease(store, layer, active);
  return OneWorkerPerExpert(active.size(), batch.pool.size())
             ? RunWhole(active.size(), batch, x, activation)
             : RunSliced(active.size(), batch, x, activation);
}

}  // namespace mk
