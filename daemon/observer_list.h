// ObserverList: what a forward pass shows of one item, to several observers.

#pragma once

#include <algorithm>
#include <vector>

#include "engine/model/model.h"

namespace mk::daemon {

class ObserverList : public ForwardObserver {
 public:
  // It must outlive the list, or be removed.
  void Add(ForwardObserver* observer) { all_.push_back(observer); }
  void Remove(const ForwardObserver* observer) { std::erase(all_, observer); }
  bool empty() const { return all_.empty(); }

  void OnAttention(size_t item, size_t position, size_t layer,
                   std::span<const float> rows) override {
    for (ForwardObserver* to : all_) to->OnAttention(item, position, layer, rows);
  }
  void OnFeedForward(size_t item, size_t position, size_t layer,
                     std::span<const float> rows) override {
    for (ForwardObserver* to : all_) to->OnFeedForward(item, position, layer, rows);
  }
  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float> rows) override {
    for (ForwardObserver* to : all_) to->OnHidden(item, position, layer, rows);
  }
  bool WantsOutput(size_t item) const override {
    return std::any_of(all_.begin(), all_.end(),
                       [&](const ForwardObserver* one) { return one->WantsOutput(item); });
  }
  void OnOutput(size_t item, size_t position, std::span<const float> rows) override {
    for (ForwardObserver* to : all_) to->OnOutput(item, position, rows);
  }
  void OnRouter(size_t item, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override {
    for (ForwardObserver* to : all_) to->OnRouter(item, position, layer, experts, weights);
  }
  void OnCompressed(size_t item, size_t position, size_t layer, size_t row,
                    std::span<const float> values) override {
    for (ForwardObserver* to : all_) to->OnCompressed(item, position, layer, row, values);
  }
  void OnIndexer(size_t item, size_t position, size_t layer, std::span<const int32_t> rows,
                 std::span<const float> scores) override {
    for (ForwardObserver* to : all_) to->OnIndexer(item, position, layer, rows, scores);
  }

 private:
  std::vector<ForwardObserver*> all_;
};

}  // namespace mk::daemon
