// SessionPredictor: which experts the next layer will ask for, from sessions of before.
//
// A session is known by its histogram: how often every layer asked for every expert. After a while
// the running session is matched with the most similar one (cosine of the histograms); for the next
// passes every layer is expected to ask for what that session asked for most. Prefetching pays
// while the cache is cold, so it ends after kColdPasses, until the topic changes.

#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/replay/demand_predictor.h"

namespace mk {

struct SessionHistogram {
  // [layer]: experts, ascending, and how often each was asked for.
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> layers;
};

// Counts since the beginning, by which a change of topic is told.
struct PredictionRecord {
  // Of another predictor that always guesses (MarkovPredictor): its guesses, and the right ones.
  uint64_t guesses = 0;
  uint64_t right = 0;
  // What was fetched for predictions of this one, and what of it was used.
  uint64_t fetched = 0;
  uint64_t used = 0;
};

class SessionPredictor final : public DemandPredictor {
 public:
  static constexpr uint64_t kLeastRequests = 64;  // before a match
  static constexpr double kLeastCosine = 0.15;
  static constexpr uint64_t kColdPasses = 50;   // predictions after a match
  static constexpr uint64_t kCheckPasses = 64;  // between looks for a change of topic
  static constexpr uint64_t kLeastRecord = 128;
  static constexpr size_t kWindow = 8192;  // demands that a new match looks at

  struct Match {
    size_t session = 0;
    double cosine = 0;
  };

  // Predicts `predict` experts of a layer. What sessions tell of layers and experts that the model
  // does not have is left out.
  SessionPredictor(std::vector<SessionHistogram> sessions, size_t layers, size_t experts,
                   size_t predict);

  // Predicts at the first demand of a layer, for the next one.
  void Observe(size_t layer, size_t expert, std::vector<ExpertKey>& predicted) override;

  // Tells how predictions have fared. Without it a match is final.
  void SetRecord(const PredictionRecord& record) { record_ = record; }

  const std::optional<Match>& match() const { return match_; }
  uint64_t matches() const { return matches_; }      // first ones: 0 or 1
  uint64_t rematches() const { return rematches_; }  // after a change of topic

  // The session that shares most of the `top` most wanted experts of the layers: mean of |A and B|
  // / max(|A|, |B|) over layers that either has; the first of equals. For comparison.
  std::optional<size_t> MostOverlapping(size_t top) const;

 private:
  using Counts = std::vector<uint32_t>;  // [layers * experts]

  std::optional<Match> BestMatch(const Counts& counts) const;
  bool TopicChanged();
  void TakeMatch(const Match& match);
  void Predict(size_t layer, std::vector<ExpertKey>& predicted) const;
  std::vector<uint32_t> Top(const Counts& counts, size_t layer, size_t top) const;

  const size_t layers_;
  const size_t experts_;
  const size_t predict_;
  std::vector<SessionHistogram> sessions_;
  std::vector<double> norms_;  // of their histograms
  Counts counts_;              // of the running session
  std::vector<ExpertKey> window_;
  uint64_t requests_ = 0;
  uint64_t pass_ = 0;
  std::optional<size_t> open_;
  std::optional<Match> match_;
  // [layers]: what the matched session asked for most; empty where it asked for nothing.
  std::vector<std::vector<uint32_t>> wanted_;
  uint64_t matched_pass_ = 0;
  uint64_t checked_pass_ = 0;
  PredictionRecord record_;
  PredictionRecord checked_record_;
  uint64_t matches_ = 0;
  uint64_t rematches_ = 0;
};

}  // namespace mk
