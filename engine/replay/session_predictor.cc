#include "engine/replay/session_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mk {
namespace {

using Pair = std::pair<uint32_t, uint32_t>;  // expert, count

// The most frequent experts, smaller ids first among equals.
std::vector<uint32_t> MostFrequent(std::vector<Pair> pairs, size_t count) {
  count = std::min(count, pairs.size());
  const auto end = pairs.begin() + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(pairs.begin(), end, pairs.end(), [](const Pair& a, const Pair& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  std::vector<uint32_t> experts;
  for (auto it = pairs.begin(); it != end; ++it) experts.push_back(it->first);
  return experts;
}

double Norm(const SessionHistogram& session) {
  double sum = 0;
  for (const auto& layer : session.layers) {
    for (const auto& [expert, count] : layer) sum += double{1} * count * count;
  }
  return std::sqrt(sum);
}

// Less than a quarter.
bool Poor(uint64_t part, uint64_t whole) {
  return 4 * part < whole;
}

}  // namespace

SessionPredictor::SessionPredictor(std::vector<SessionHistogram> sessions, size_t layers,
                                   size_t experts, size_t predict)
    : layers_(layers),
      experts_(experts),
      predict_(predict),
      sessions_(std::move(sessions)),
      counts_(layers * experts),
      wanted_(layers) {
  for (SessionHistogram& session : sessions_) {
    session.layers.resize(std::min(session.layers.size(), layers_));
    for (auto& layer : session.layers) {
      std::erase_if(layer, [&](const Pair& pair) { return pair.first >= experts_; });
    }
    norms_.push_back(Norm(session));
  }
}

void SessionPredictor::Observe(size_t layer, size_t expert, std::vector<ExpertKey>& predicted) {
  const auto key = static_cast<ExpertKey>(layer * experts_ + expert);
  ++counts_[key];
  if (window_.size() < kWindow) {
    window_.push_back(key);
  } else {
    window_[requests_ % kWindow] = key;
  }
  ++requests_;
  if (open_ == layer) return;
  const std::optional<size_t> before = open_;
  open_ = layer;
  if (!before) return;
  bool predicts = match_ && pass_ - matched_pass_ < kColdPasses;
  if (layer < *before) {
    ++pass_;
    if (!match_ && requests_ >= kLeastRequests) {
      if (const auto match = BestMatch(counts_)) {
        TakeMatch(*match);
        ++matches_;
        predicts = true;
      }
    } else if (match_ && TopicChanged()) {
      Counts recent(counts_.size());
      for (const ExpertKey one : window_) ++recent[one];
      const auto match = BestMatch(recent);
      if (match && match->session != match_->session) {
        TakeMatch(*match);
        ++rematches_;
        predicts = true;
      }
    }
  }
  if (predicts) Predict(layer, predicted);
}

std::optional<SessionPredictor::Match> SessionPredictor::BestMatch(const Counts& counts) const {
  double sum = 0;
  for (const uint32_t count : counts) sum += double{1} * count * count;
  const double norm = std::sqrt(sum);
  std::optional<Match> best;
  for (size_t s = 0; s < sessions_.size(); ++s) {
    double dot = 0;
    for (size_t l = 0; l < sessions_[s].layers.size(); ++l) {
      for (const auto& [expert, count] : sessions_[s].layers[l]) {
        dot += double{1} * count * counts[l * experts_ + expert];
      }
    }
    const double cosine = norm > 0 && norms_[s] > 0 ? dot / (norm * norms_[s]) : 0;
    if (cosine >= kLeastCosine && (!best || cosine > best->cosine)) best = Match{s, cosine};
  }
  return best;
}

// Once in kCheckPasses: whether most of what was expected since the last look did not come.
bool SessionPredictor::TopicChanged() {
  if (pass_ < checked_pass_ + kCheckPasses) return false;
  checked_pass_ = pass_;
  const PredictionRecord before = std::exchange(checked_record_, record_);
  const uint64_t guesses = record_.guesses - before.guesses;
  if (guesses >= kLeastRecord) return Poor(record_.right - before.right, guesses);
  const uint64_t fetched = record_.fetched - before.fetched;
  return fetched >= kLeastRecord && Poor(record_.used - before.used, fetched);
}

void SessionPredictor::TakeMatch(const Match& match) {
  match_ = match;
  matched_pass_ = pass_;
  const auto& session = sessions_[match.session].layers;
  for (size_t l = 0; l < layers_; ++l) {
    wanted_[l] = l < session.size() ? MostFrequent(session[l], predict_) : std::vector<uint32_t>();
  }
}

void SessionPredictor::Predict(size_t layer, std::vector<ExpertKey>& predicted) const {
  for (size_t step = 1; step < layers_; ++step) {
    const size_t target = (layer + step) % layers_;
    if (wanted_[target].empty()) continue;
    for (const uint32_t expert : wanted_[target]) {
      predicted.push_back(static_cast<ExpertKey>(target * experts_ + expert));
    }
    return;
  }
}

std::vector<uint32_t> SessionPredictor::Top(const Counts& counts, size_t layer, size_t top) const {
  std::vector<Pair> pairs;
  for (uint32_t e = 0; e < experts_; ++e) {
    if (counts[layer * experts_ + e] > 0) pairs.emplace_back(e, counts[layer * experts_ + e]);
  }
  return MostFrequent(std::move(pairs), top);
}

std::optional<size_t> SessionPredictor::MostOverlapping(size_t top) const {
  std::optional<size_t> best;
  double best_overlap = -1;
  for (size_t s = 0; s < sessions_.size(); ++s) {
    double sum = 0;
    size_t layers = 0;
    for (size_t l = 0; l < layers_; ++l) {
      const std::vector<uint32_t> own = Top(counts_, l, top);
      const auto& session = sessions_[s].layers;
      const std::vector<uint32_t> theirs =
          l < session.size() ? MostFrequent(session[l], top) : std::vector<uint32_t>();
      if (own.empty() && theirs.empty()) continue;
      ++layers;
      const auto shared = std::count_if(own.begin(), own.end(), [&](uint32_t expert) {
        return std::find(theirs.begin(), theirs.end(), expert) != theirs.end();
      });
      sum += static_cast<double>(shared) / static_cast<double>(std::max(own.size(), theirs.size()));
    }
    const double overlap = layers > 0 ? sum / static_cast<double>(layers) : 0;
    if (overlap > best_overlap) {
      best_overlap = overlap;
      best = s;
    }
  }
  return best;
}

}  // namespace mk
