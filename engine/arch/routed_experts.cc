#include "engine/arch/routed_experts.h"

#include <algorithm>

#include "engine/kernels/vq1_matmul.h"

namespace mk {
namespace {

// Weights of an expert up to which one worker does all of it. Larger ones are cut into slices: they
// are worth the barriers, and an expert more or less would upset the balance.
constexpr size_t kSmallExpert = size_t{256} << 10;
// About what one thread gets through.
constexpr uint64_t kWeightsPerNanosecond = 25;
// Tables of VQ1 products are shared by the experts of a layer as long as they stay in the second
// level cache.
constexpr size_t kMostTableBytes = size_t{1} << 20;
// About what the tables of sixteen columns take to make.
constexpr uint64_t kTableNanoseconds = 60;

// Gives the requested experts of a layer back, at the latest when the layer is done with them.
class Lease {
 public:
  Lease(ExpertStore& store, size_t layer, std::span<uint32_t> experts)
      : store_(store), layer_(layer), experts_(experts) {
    store_.Request(layer_, experts_);
  }
  ~Lease() { store_.Release(layer_, experts_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  bool empty() const { return experts_.empty(); }
  // Waits for some of those that are left; see ExpertStore::Acquire.
  Result<std::span<const uint32_t>> Next(std::span<ExpertWeights> out) {
    Result<size_t> ready = store_.Acquire(layer_, experts_, out.first(experts_.size()));
    if (!ready) return Fail(ready.error());
    return experts_.first(*ready);
  }
  void Return(size_t count) {
    store_.Release(layer_, experts_.first(count));
    experts_ = experts_.subspan(count);
  }

 private:
  ExpertStore& store_;
  size_t layer_;
  std::span<uint32_t> experts_;
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

ExpertJob Product(const ExpertMatrix& w, const Activations& x, float* y, size_t n,
                  const SharedTables& tables = {}) {
  return {w, x.values, x.ld, y, w.rows, n, x.q8.high, nullptr, tables};
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
  pending_ = arena.Allocate<uint32_t>(shape.experts);
  ready_ = arena.Allocate<uint32_t>(shape.experts);
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

// Which of the active experts those in memory are.
void RoutedExperts::FindReady(std::span<const uint32_t> active,
                              std::span<const uint32_t> ready) const {
  for (size_t i = 0; i < ready.size(); ++i) {
    // As a rule all of them come at once, in order.
    const bool in_place = active[i] == ready[i];
    ready_[i] = static_cast<uint32_t>(
        in_place ? i : std::lower_bound(active.begin(), active.end(), ready[i]) - active.begin());
  }
}

// The first VQ1 matrix of those in memory, if tables of all rows are small enough; null: there are
// to be none.
const ExpertMatrix* RoutedExperts::TablesModel(size_t ready, size_t rows) const {
  for (size_t i = 0; i < ready; ++i) {
    for (const ExpertMatrix* w : {&experts_[i].gate, &experts_[i].up}) {
      if (w->kind != ExpertKind::kVq1) continue;
      const size_t bytes = rows * Vq1TableFloats(width_, w->stages) * sizeof(float);
      return bytes <= kMostTableBytes ? w : nullptr;
    }
  }
  return nullptr;
}

// Tables of all rows, for the products with their experts' w1 and w3, unless there are some.
Status RoutedExperts::BuildTables(size_t ready, const BatchRows& batch,
                                  const Activations& x) const {
  const ExpertMatrix* w = tables_of_ == nullptr ? TablesModel(ready, batch.rows) : nullptr;
  if (w == nullptr) return {};
  const size_t floats = Vq1TableFloats(width_, w->stages);
  if (tables_.size() < batch.rows * floats) {
    tables_ = batch.scratch.Allocate<float>(batch.rows * floats);
  }
  tables_of_ = w->codebook;
  const uint64_t nanoseconds = batch.rows * floats / 256 * kTableNanoseconds;
  return batch.pool.ParallelFor(batch.rows, nanoseconds, [&](size_t row, size_t) {
    BuildVq1Tables(w->codebook, w->stages, x.row(row), width_, &tables_[row * floats]);
  });
}

SharedTables RoutedExperts::TablesFor(const ExpertMatrix& w, const Expert& expert) const {
  if (tables_of_ == nullptr || w.codebook != tables_of_) return {};
  return {tables_.data(), &rows_[expert.first]};
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
  const auto multiply = [&](ExpertMatrix ExpertWeights::*part, const Activations& in, float* out,
                            const SharedTables& tables = {}) {
    const ExpertMatrix& w = expert.weights.*part;
    ExpertJob job = Product(w, in, out, expert.count, tables);
    if (next != nullptr && (next->*part).kind == w.kind) job.ahead = (next->*part).packed;
    ExpertMatMul(job, 0, w.rows);
  };
  const ExpertWeights& w = expert.weights;
  multiply(&ExpertWeights::gate, rows, gate_.row(expert.first), TablesFor(w.gate, expert));
  multiply(&ExpertWeights::up, rows, up_ + expert.first * inner_, TablesFor(w.up, expert));
  Activate(expert.first, expert.first + expert.count, activation);
  multiply(&ExpertWeights::down, gate_.From(expert.first), output_ + expert.first * width_);
}

// True if experts are small and none of them has more than the share of a worker.
bool RoutedExperts::OneWorkerPerExpert(size_t ready, size_t workers) const {
  if (3 * inner_ * width_ > kSmallExpert) return false;
  size_t most = 0;
  size_t slots = 0;
  for (size_t i = 0; i < ready; ++i) {
    const size_t count = ExpertAt(i).count;
    most = std::max(most, count);
    slots += count;
  }
  return most * workers <= slots;
}

Status RoutedExperts::RunWhole(size_t ready, const BatchRows& batch, const Activations& x,
                               Activation activation) const {
  size_t slots = 0;
  for (size_t i = 0; i < ready; ++i) slots += ExpertAt(i).count;
  const uint64_t nanoseconds = 3 * inner_ * width_ * slots / kWeightsPerNanosecond;
  ThreadPool& pool = batch.pool;
  return pool.ParallelFor(ready, nanoseconds, [&](size_t i, size_t) {
    if (pool.StartsRun(i, ready)) Prefetch(experts_[i]);
    const bool goes_on = i + 1 < ready && !pool.StartsRun(i + 1, ready);
    RunExpert(ExpertAt(i), goes_on ? &experts_[i + 1] : nullptr, x, activation);
  });
}

// All workers on slices of the matrices.
Status RoutedExperts::RunSliced(size_t ready, const BatchRows& batch, const Activations& x,
                                Activation activation) const {
  Status gathered = batch.pool.ParallelFor(ready, [&](size_t i, size_t) {
    const Expert expert = ExpertAt(i);
    const Activations rows = Gather(expert, x);
    const size_t first = expert.first;
    const ExpertWeights& w = expert.weights;
    const SharedTables gate_tables = TablesFor(w.gate, expert);
    const SharedTables up_tables = TablesFor(w.up, expert);
    jobs_[2 * i] = Product(w.gate, rows, gate_.row(first), expert.count, gate_tables);
    jobs_[2 * i + 1] = Product(w.up, rows, up_ + first * inner_, expert.count, up_tables);
    down_jobs_[i] = Product(w.down, gate_.From(first), output_ + first * width_, expert.count);
  });
  if (!gathered) return gathered;
  const std::span<const ExpertJob> outputs = down_jobs_.first(ready);
  Status done = ParallelExpertMatMul(batch.pool, jobs_.first(2 * ready), outputs);
  if (!done) return done;
  done = batch.pool.ParallelFor(ready, [&](size_t i, size_t) {
    const Expert expert = ExpertAt(i);
    Activate(expert.first, expert.first + expert.count, activation);
  });
  if (!done) return done;
  return ParallelExpertMatMul(batch.pool, outputs);
}

Status RoutedExperts::RunReady(size_t ready, const BatchRows& batch, const Activations& x,
                               Activation activation) const {
  if (Status made = BuildTables(ready, batch, x); !made) return made;
  return OneWorkerPerExpert(ready, batch.pool.size()) ? RunWhole(ready, batch, x, activation)
                                                      : RunSliced(ready, batch, x, activation);
}

// Counts for every row what shadows serve, and collects the experts that are to be given back at
// the front of pending_. Returns how many those are.
size_t RoutedExperts::CountShadows(std::span<const uint32_t> active,
                                   std::span<uint64_t> shadowed) const {
  size_t own = 0;
  for (size_t a = 0; a < active.size(); ++a) {
    if (!experts_[a].shadow) {
      pending_[own++] = active[a];
      continue;
    }
    for (size_t slot = first_[a]; slot < first_[a + 1]; ++slot) ++shadowed[rows_[slot]];
  }
  return own;
}

// With what is in memory, and with shadows of the rest.
Status RoutedExperts::RunNow(ExpertStore& store, size_t layer, std::span<const uint32_t> active,
                             const BatchRows& batch, const Activations& x,
                             Activation activation) const {
  Status held = store.AcquireNow(layer, active, experts_.first(active.size()));
  if (!held) return held;
  const std::span<const uint32_t> own = pending_.first(CountShadows(active, batch.shadowed));
  FindReady(active, active);
  Status done = RunReady(active.size(), batch, x, activation);
  store.Release(layer, own);
  return done;
}

Status RoutedExperts::Run(ExpertStore& store, size_t layer, const BatchRows& batch,
                          const Activations& x, Activation activation,
                          FunctionRef<void()> meanwhile) const {
  const std::span<const uint32_t> active = GroupByExpert();
  tables_of_ = nullptr;
  if (batch.experts == ExpertAccess::kShadow) {
    return RunNow(store, layer, active, batch, x, activation);
  }
  std::copy(active.begin(), active.end(), pending_.begin());
  Lease lease(store, layer, pending_.first(active.size()));
  meanwhile();
  while (!lease.empty()) {
    Result<std::span<const uint32_t>> ready = lease.Next(experts_);
    if (!ready) return Fail(ready.error());
    FindReady(active, *ready);
    if (Status done = RunReady(ready->size(), batch, x, activation); !done) return done;
    lease.Return(ready->size());
  }
  return {};
}

}  // namespace mk
