#include "engine/arch/routed_experts.h"

#include <algorithm>

namespace mk {
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

}  // namespace

RoutedExperts::RoutedExperts(const ExpertShape& shape, size_t top_k, const BatchRows& batch)
    : width_(shape.width), inner_(shape.inner), top_k_(top_k) {
  ScratchArena& arena = batch.scratch;
  const size_t slot_count = batch.rows * top_k;
  picks_ = arena.Allocate<int32_t>(slot_count);
  weights_ = arena.Allocate<float>(slot_count);
  slots_ = arena.Allocate<uint32_t>(slot_count);
  slot_weights_ = arena.Allocate<float>(slot_count);
  count_ = arena.Allocate<uint32_t>(shape.experts);
  std::fill(count_.begin(), count_.end(), 0);
  first_ = arena.Allocate<uint32_t>(shape.experts + 1);
  active_ = arena.Allocate<uint32_t>(shape.experts);
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
    slot_weights_[slots_[i]] = weights_[i];
  }
  for (size_t a = 0; a < active; ++a) count_[active_[a]] = 0;
  return active_.first(active);
}

// The input of every pick, copied to the pick's slot.
Status RoutedExperts::Gather(const BatchRows& batch, const Activations& x) const {
  return ForRows(batch.pool, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      for (size_t i = row * top_k_; i < (row + 1) * top_k_; ++i) CopyRow(x, row, input_, slots_[i]);
    }
  });
}

Status RoutedExperts::Multiply(std::span<const uint32_t> active, const BatchRows& batch,
                               Activation activation) const {
  const auto slot_count = [&](size_t a) -> size_t { return first_[a + 1] - first_[a]; };
  size_t n = 0;
  for (size_t a = 0; a < active.size(); ++a) {
    const size_t first = first_[a];
    const Activations x = input_.From(first);
    const size_t count = slot_count(a);
    jobs_[n++] = Product(experts_[a].gate, x, gate_.row(first), count);
    jobs_[n++] = Product(experts_[a].up, x, up_ + first * inner_, count);
  }
  const std::span<ExpertJob> inputs = jobs_.first(n);
  n = 0;
  for (size_t a = 0; a < active.size(); ++a) {
    const size_t first = first_[a];
    down_jobs_[n++] =
        Product(experts_[a].down, gate_.From(first), output_ + first * width_, slot_count(a));
  }
  const std::span<ExpertJob> outputs = down_jobs_.first(n);
  if (Status done = ParallelExpertMatMul(batch.pool, inputs, outputs); !done) return done;
  Status activated = ForRows(batch.pool, picks_.size(), [&](size_t begin, size_t end) {
    const size_t floats = (end - begin) * inner_;
    activation({{gate_.row(begin), floats},
                {up_ + begin * inner_, floats},
                slot_weights_.subspan(begin, end - begin),
                inner_});
    gate_.Seal(begin, end);
  });
  if (!activated) return activated;
  return ParallelExpertMatMul(batch.pool, outputs);
}

Status RoutedExperts::Run(ExpertStore& store, size_t layer, const BatchRows& batch,
                          const Activations& x, Activation activation) const {
  const std::span<const uint32_t> active = GroupByExpert();
  store.Prefetch(layer, active);
  if (Status done = Gather(batch, x); !done) return done;
  if (Status held = store.Acquire(layer, active, experts_.first(active.size())); !held) {
    return held;
  }
  const Lease lease(store, layer, active);
  return Multiply(active, batch, activation);
}

}  // namespace mk
