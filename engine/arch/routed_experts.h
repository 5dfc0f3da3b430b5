// RoutedExperts: runs the experts that the rows of a batch picked.
//
// Rows are grouped by expert, so that an expert is read once per forward; every (row, pick) has a
// slot, and slots of one expert lie next to each other. What a row's experts gave is combined by
// the layer in the order of its picks, so that grouping leaves no trace.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/arch/batch.h"
#include "engine/base/result.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/parallel/function_ref.h"

namespace mk {

class RoutedExperts {
 public:
  // Scratch for `batch.rows` rows that pick `top_k` experts each.
  RoutedExperts(const ExpertShape& shape, size_t top_k, const BatchRows& batch);

  // The picks of a row, best first, and their weights: [top_k], written by the router. An expert
  // may be picked twice.
  std::span<int32_t> picks(size_t row) const { return picks_.subspan(row * top_k_, top_k_); }
  std::span<float> weights(size_t row) const { return weights_.subspan(row * top_k_, top_k_); }

  // What an activation works on: slots [begin, end), `gate` = W1 x and `up` = W3 x, [slots][inner]
  // each, and the weights of the slots. The result goes to `gate`.
  struct Slots {
    std::span<float> gate;
    std::span<const float> up;
    std::span<const float> weights;  // [slots]
    size_t inner;
  };
  using Activation = FunctionRef<void(const Slots&)>;

  // W2 activation(W1 x, W3 x) of every pick of every row. x: [rows][width], sealed. `meanwhile` is
  // called once, when the store has been asked for the experts and before they are waited for.
  // Errors of the store.
  Status Run(ExpertStore& store, size_t layer, const BatchRows& batch, const Activations& x,
             Activation activation, FunctionRef<void()> meanwhile) const;

  // After Run: what pick j of a row gave, [width]; the row's to overwrite.
  std::span<float> output(size_t row, size_t j) const {
    return {output_ + slots_[row * top_k_ + j] * width_, width_};
  }

  // Adds what the picks of all rows cost in this layer. `Items`: items of a BatchOf.
  template <typename Items>
  void CountUse(const Items& items, ExpertUse& use) const {
    std::fill(last_item_.begin(), last_item_.end(), 0);
    uint32_t mark = 0;
    for (const auto& item : items) {
      ++mark;
      for (const int32_t pick : picks_.subspan(item.first_row * top_k_, item.tokens * top_k_)) {
        uint32_t& last = last_item_[static_cast<size_t>(pick)];
        if (last == 0) ++use.reads;
        if (last != mark) ++use.reads_alone;
        last = mark;
      }
    }
    use.picks += picks_.size();
  }

  // Hands the picks of all rows to the batch's observer. `Items`: items of a BatchOf.
  template <typename Items>
  void Report(const Items& items, size_t layer, ForwardObserver& observer) const {
    for (const auto& item : items) {
      for (size_t t = 0; t < item.tokens; ++t) {
        observer.OnRouter(item.index, item.position + t, layer, picks(item.first_row + t),
                          weights(item.first_row + t));
      }
    }
  }

 private:
  // Slots [first, first + count) of an active expert.
  struct Expert {
    const ExpertWeights& weights;
    size_t first;
    size_t count;
  };

  const ExpertMatrix* TablesModel(size_t ready, size_t rows) const;
  Status BuildTables(size_t ready, const BatchRows& batch, const Activations& x) const;
  // The tables for a product of the inputs of an expert.
  SharedTables TablesFor(const ExpertMatrix& w, const Expert& expert) const;
  std::span<const uint32_t> GroupByExpert() const;
  void CountSlots(size_t active) const;
  void FindReady(std::span<const uint32_t> active, std::span<const uint32_t> ready) const;
  // Of the experts that are in memory.
  Expert ExpertAt(size_t i) const {
    const size_t a = ready_[i];
    return {experts_[i], first_[a], first_[a + 1] - first_[a]};
  }
  Activations Gather(const Expert& expert, const Activations& x) const;
  void Activate(size_t begin, size_t end, Activation activation) const;
  void RunExpert(const Expert& expert, const ExpertWeights* next, const Activations& x,
                 Activation activation) const;
  Status RunNow(ExpertStore& store, size_t layer, std::span<const uint32_t> active,
                const BatchRows& batch, const Activations& x, Activation activation) const;
  size_t CountShadows(std::span<const uint32_t> active, std::span<uint64_t> shadowed) const;
  Status RunReady(size_t ready, const BatchRows& batch, const Activations& x,
                  Activation activation) const;
  bool OneWorkerPerExpert(size_t ready, size_t workers) const;
  Status RunWhole(size_t ready, const BatchRows& batch, const Activations& x,
                  Activation activation) const;
  Status RunSliced(size_t ready, const BatchRows& batch, const Activations& x,
                   Activation activation) const;

  const size_t width_;
  const size_t inner_;
  const size_t top_k_;
  std::span<int32_t> picks_;          // [rows][k]
  std::span<float> weights_;          // [rows][k]
  std::span<uint32_t> slots_;         // [rows][k]: slot of a pick
  std::span<uint32_t> rows_;          // [rows k]: row of a slot
  std::span<float> slot_weights_;     // [rows k]
  std::span<uint32_t> count_;         // [E]: picks of an expert, zero between layers
  std::span<uint32_t> first_;         // [E + 1]: first slot of an active expert, then the end
  std::span<uint32_t> active_;        // [E]: experts with slots, ascending
  std::span<uint32_t> pending_;       // [E]: active ones that have not been run yet
  std::span<uint32_t> ready_;         // [E]: of the experts in memory, their index in active_
  std::span<uint32_t> last_item_;     // [E]: for CountUse, the last item that picked it
  std::span<ExpertWeights> experts_;  // [E]: of the ready ones
  std::span<ExpertJob> jobs_;         // [2 E]: gates and ups
  std::span<ExpertJob> down_jobs_;    // [E]
  Activations input_;                 // [rows k][width]: inputs by slot
  Activations gate_;                  // [rows k][inner], then the activation
  float* up_;                         // [rows k][inner]
  float* output_;                     // [rows k][width]
  // Of VQ1 products with the rows of x, made at the first layer that has use for them.
  mutable std::span<float> tables_;      // [rows][tables of a row]
  mutable const float* tables_of_ = {};  // their codebook; null: there are none in this layer
};

}  // namespace mk
