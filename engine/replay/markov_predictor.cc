#include "engine/replay/markov_predictor.h"

#include <algorithm>
#include <cmath>

namespace mk {
namespace {

constexpr float kHalfLife = 256.0f;  // passes
constexpr float kPopularWeight = 0.25f;
constexpr size_t kMostFollowers = 128;
constexpr size_t kKeptFollowers = 64;  // when there are more

}  // namespace

float MarkovPredictor::Faded::At(uint64_t epoch) const {
  return value * std::exp2(-static_cast<float>(epoch - stamp) / kHalfLife);
}

void MarkovPredictor::Faded::Bump(uint64_t epoch) {
  value = At(epoch) + 1.0f;
  stamp = epoch;
}

MarkovPredictor::MarkovPredictor(size_t layers, size_t experts, size_t top_k, size_t predict)
    : experts_(experts),
      top_k_(top_k),
      predict_(predict),
      popular_(layers * experts),
      followers_(layers * experts),
      next_layer_(layers, -1),
      expected_(layers),
      scores_(experts) {}

void MarkovPredictor::Observe(size_t layer, size_t expert, std::vector<ExpertKey>& predicted) {
  if (open_ != layer) CloseLayer(layer);
  const auto id = static_cast<uint32_t>(expert);
  if (std::find(asked_.begin(), asked_.end(), id) != asked_.end()) return;
  asked_.push_back(id);
  if (asked_.size() != top_k_) return;
  ScorePrediction();
  if (next_layer_[layer] >= 0) Predict(predicted);
}

void MarkovPredictor::CloseLayer(size_t next_layer) {
  if (open_) {
    for (const uint32_t expert : asked_) popular_[KeyOf(*open_, expert)].Bump(epoch_);
    for (const uint32_t cause : before_) {
      Row& row = followers_[KeyOf(*open_, cause)];
      for (const uint32_t expert : asked_) BumpFollower(row, expert);
    }
    next_layer_[*open_] = static_cast<int64_t>(next_layer);
    if (next_layer < *open_) ++epoch_;
  }
  before_.swap(asked_);
  asked_.clear();
  open_ = next_layer;
}

// A row that grows too long keeps its largest counts.
void MarkovPredictor::BumpFollower(Row& row, uint32_t expert) const {
  const auto found = std::find_if(row.begin(), row.end(),
                                  [&](const Follower& one) { return one.expert == expert; });
  if (found != row.end()) return found->count.Bump(epoch_);
  row.push_back({expert, {1.0f, epoch_}});
  if (row.size() <= kMostFollowers) return;
  for (Follower& one : row) one.count = {one.count.At(epoch_), epoch_};
  std::sort(row.begin(), row.end(), [](const Follower& a, const Follower& b) {
    return a.count.value != b.count.value ? a.count.value > b.count.value : a.expert < b.expert;
  });
  row.resize(kKeptFollowers);
}

// How good was what had been expected of the open layer.
void MarkovPredictor::ScorePrediction() {
  std::vector<uint32_t>& expected = expected_[*open_];
  scored_ += expected.size();
  for (const uint32_t expert : expected) {
    if (std::find(asked_.begin(), asked_.end(), expert) != asked_.end()) ++hits_;
  }
  expected.clear();
}

void MarkovPredictor::Predict(std::vector<ExpertKey>& predicted) {
  const auto target = static_cast<size_t>(next_layer_[*open_]);
  std::fill(scores_.begin(), scores_.end(), 0.0f);
  // In ascending order, so that sums do not depend on the order of the demands.
  std::vector<uint32_t>& causes = candidates_;
  causes.assign(asked_.begin(), asked_.end());
  std::sort(causes.begin(), causes.end());
  for (const uint32_t cause : causes) {
    for (const Follower& one : followers_[KeyOf(target, cause)]) {
      scores_[one.expert] += one.count.At(epoch_);
    }
  }
  candidates_.clear();
  for (size_t e = 0; e < experts_; ++e) {
    scores_[e] += kPopularWeight * popular_[KeyOf(target, e)].At(epoch_);
    if (scores_[e] > 0.0f) candidates_.push_back(static_cast<uint32_t>(e));
  }
  const size_t count = std::min(predict_, candidates_.size());
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), [&](uint32_t a, uint32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  });
  candidates_.erase(end, candidates_.end());
  expected_[target] = candidates_;
  for (const uint32_t expert : candidates_) {
    predicted.push_back(static_cast<ExpertKey>(KeyOf(target, expert)));
  }
}

}  // namespace mk
