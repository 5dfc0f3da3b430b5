// SessionPredictor against a slow one that follows the definition word by word.

#include "engine/replay/session_predictor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "engine/replay/replay.h"
#include "tests/unit/replay/random_trace.h"

namespace mk {
namespace {

using test::RandomTrace;
// (layer, expert): how often.
using Histogram = std::map<std::pair<size_t, size_t>, double>;

Histogram HistogramOf(const DemandTrace& trace) {
  Histogram histogram;
  for (const ExpertKey key : trace.demands) {
    ++histogram[{trace.layer_of(key), trace.expert_of(key)}];
  }
  return histogram;
}

SessionHistogram SessionOf(const Histogram& histogram) {
  SessionHistogram session;
  for (const auto& [pair, count] : histogram) {
    session.layers.resize(std::max(session.layers.size(), pair.first + 1));
    session.layers[pair.first].emplace_back(pair.second, static_cast<uint32_t>(count));
  }
  return session;
}

double Cosine(const Histogram& a, const Histogram& b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (const auto& [pair, count] : a) {
    aa += count * count;
    const auto other = b.find(pair);
    if (other != b.end()) dot += count * other->second;
  }
  for (const auto& [pair, count] : b) bb += count * count;
  return aa == 0 || bb == 0 ? 0 : dot / (std::sqrt(aa) * std::sqrt(bb));
}

// The experts of a layer, the most wanted first.
std::vector<size_t> Top(const Histogram& histogram, size_t layer, size_t count) {
  std::set<std::pair<double, size_t>> order;
  for (const auto& [pair, times] : histogram) {
    if (pair.first == layer) order.emplace(-times, pair.second);
  }
  std::vector<size_t> top;
  for (const auto& [times, expert] : order) {
    if (top.size() < count) top.push_back(expert);
  }
  return top;
}

class PlainPredictor {
 public:
  PlainPredictor(std::vector<Histogram> sessions, size_t experts, size_t predict)
      : sessions_(std::move(sessions)), experts_(experts), predict_(predict) {}

  std::vector<ExpertKey> Observe(size_t layer, size_t expert) {
    ++own_[{layer, expert}];
    window_.emplace_back(layer, expert);
    if (window_.size() > 8192) window_.pop_front();
    ++requests_;
    if (seen_ && layer == before_) return {};
    const bool had_layer = seen_;
    const bool wrap = had_layer && layer < before_;
    seen_ = true;
    before_ = layer;
    bool chained = had_layer && match >= 0 && pass_ - matched_pass_ < 50;
    if (wrap) ++pass_;
    if (match < 0 && wrap && requests_ >= 64) {
      match = Best(own_);
      if (match >= 0) {
        matched_pass_ = pass_;
        chained = true;
      }
    } else if (wrap && match >= 0 && pass_ >= checked_ + 64) {
      checked_ = pass_;
      const PredictionRecord was = std::exchange(checked_record_, record);
      const double guesses = static_cast<double>(record.guesses - was.guesses);
      const double fetched = static_cast<double>(record.fetched - was.fetched);
      const bool rupture =
          guesses >= 128
              ? static_cast<double>(record.right - was.right) < 0.25 * guesses
              : fetched >= 128 && static_cast<double>(record.used - was.used) < 0.25 * fetched;
      if (rupture) {
        Histogram recent;
        for (const auto& pair : window_) ++recent[pair];
        const int best = Best(recent);
        if (best >= 0 && best != match) {
          match = best;
          matched_pass_ = pass_;
          chained = true;
        }
      }
    }
    return chained ? Chained(layer) : std::vector<ExpertKey>();
  }

  int match = -1;
  PredictionRecord record;

 private:
  int Best(const Histogram& histogram) const {
    int best = -1;
    double cosine = 0;
    for (size_t s = 0; s < sessions_.size(); ++s) {
      const double one = Cosine(histogram, sessions_[s]);
      // Sums in another order may differ in the last bits.
      if (one >= 0.15 && one > cosine + 1e-12) {
        best = static_cast<int>(s);
        cosine = one;
      }
    }
    return best;
  }

  std::vector<ExpertKey> Chained(size_t layer) const {
    std::set<size_t> routed;
    const Histogram& session = sessions_[static_cast<size_t>(match)];
    for (const auto& [pair, count] : session) routed.insert(pair.first);
    const auto later = routed.upper_bound(layer);
    const size_t target = later != routed.end() ? *later : *routed.begin();
    std::vector<ExpertKey> keys;
    if (target == layer) return keys;
    for (const size_t expert : Top(session, target, predict_)) {
      keys.push_back(static_cast<ExpertKey>(target * experts_ + expert));
    }
    return keys;
  }

  const std::vector<Histogram> sessions_;
  const size_t experts_;
  const size_t predict_;
  Histogram own_;
  std::deque<std::pair<size_t, size_t>> window_;
  size_t requests_ = 0;
  bool seen_ = false;
  size_t before_ = 0;
  size_t pass_ = 0;
  size_t matched_pass_ = 0;
  size_t checked_ = 0;
  PredictionRecord checked_record_;
};

struct Both {
  Both(const std::vector<Histogram>& sessions, size_t layers, size_t experts, size_t predict)
      : plain(sessions, experts, predict), real(Sessions(sessions), layers, experts, predict) {}
  static std::vector<SessionHistogram> Sessions(const std::vector<Histogram>& histograms) {
    std::vector<SessionHistogram> sessions;
    for (const Histogram& histogram : histograms) sessions.push_back(SessionOf(histogram));
    return sessions;
  }
  void SetRecord(const PredictionRecord& record) {
    plain.record = record;
    real.SetRecord(record);
  }
  // Feeds both; returns how many experts were predicted, all alike.
  size_t Feed(const DemandTrace& trace) {
    size_t count = 0;
    for (size_t i = 0; i < trace.demands.size(); ++i) {
      const size_t layer = trace.layer_of(trace.demands[i]);
      const size_t expert = trace.expert_of(trace.demands[i]);
      std::vector<ExpertKey> predicted;
      real.Observe(layer, expert, predicted);
      EXPECT_EQ(predicted, plain.Observe(layer, expert)) << "demand " << i;
      EXPECT_EQ(real.match() ? static_cast<int>(real.match()->session) : -1, plain.match) << i;
      count += predicted.size();
      if (testing::Test::HasFailure()) break;
    }
    return count;
  }

  PlainPredictor plain;
  SessionPredictor real;
};

constexpr size_t kLayers = 6;
constexpr size_t kExperts = 64;

std::vector<Histogram> ThreeTopics() {
  std::vector<Histogram> sessions;
  for (const size_t shift : {0u, 20u, 40u}) {
    sessions.push_back(HistogramOf(RandomTrace(60, kLayers, kExperts, 4, 11, shift)));
  }
  return sessions;
}

TEST(SessionPredictor, DoesWhatItsDefinitionSays) {
  for (const size_t shift : {0u, 20u, 40u, 33u}) {
    Both both(ThreeTopics(), kLayers, kExperts, 5);
    const size_t predicted = both.Feed(RandomTrace(80, kLayers, kExperts, 4, 5, shift));
    // At the match, then with every layer for fifty passes.
    EXPECT_EQ(predicted, (50 * kLayers + 1) * 5);
    if (shift % 20 == 0) {
      EXPECT_EQ(both.real.match()->session, shift / 20);
    }
  }
}

TEST(SessionPredictor, LeavesLayersOutThatASessionDidNotAskFor) {
  std::vector<Histogram> sessions = ThreeTopics();
  for (Histogram& session : sessions) {
    std::erase_if(session, [](const auto& one) { return one.first.first % 2 == 1; });
  }
  Both both(sessions, kLayers, kExperts, 7);
  both.Feed(RandomTrace(40, kLayers, kExperts, 4, 6, 20));
  ASSERT_TRUE(both.real.match());
  EXPECT_EQ(both.real.match()->session, 1u);
}

TEST(SessionPredictor, FollowsAChangeOfTopicWhenPredictionsFail) {
  for (const bool by_guesses : {true, false}) {
    Both both(ThreeTopics(), kLayers, kExperts, 5);
    both.Feed(RandomTrace(70, kLayers, kExperts, 4, 7, 0));
    ASSERT_EQ(both.real.match()->session, 0u);
    // Nobody tells: nothing changes.
    both.Feed(RandomTrace(300, kLayers, kExperts, 4, 8, 40));
    ASSERT_EQ(both.real.match()->session, 0u);
    PredictionRecord record;
    if (by_guesses) {
      record.guesses = 1000;
      record.right = 249;
    } else {
      record.fetched = 1000;
      record.used = 249;
    }
    both.SetRecord(record);
    both.Feed(RandomTrace(70, kLayers, kExperts, 4, 9, 40));
    EXPECT_EQ(both.real.match()->session, 2u);
    EXPECT_EQ(both.real.matches(), 1u);
    EXPECT_EQ(both.real.rematches(), 1u);
  }
}

TEST(SessionPredictor, StaysWhilePredictionsHold) {
  Both both(ThreeTopics(), kLayers, kExperts, 5);
  both.Feed(RandomTrace(70, kLayers, kExperts, 4, 7, 0));
  PredictionRecord record;
  record.guesses = 1000;
  record.right = 250;
  both.SetRecord(record);
  both.Feed(RandomTrace(400, kLayers, kExperts, 4, 8, 40));
  EXPECT_EQ(both.real.match()->session, 0u);
  EXPECT_EQ(both.real.rematches(), 0u);
}

TEST(SessionPredictor, MatchesNothingThatIsNotAlike) {
  Histogram other;
  other[{3, 63}] = 1000;
  Both both({other}, kLayers, kExperts, 5);
  EXPECT_EQ(both.Feed(RandomTrace(80, kLayers, kExperts, 4, 5)), 0u);
  EXPECT_FALSE(both.real.match());
  Both none({}, kLayers, kExperts, 5);
  EXPECT_EQ(none.Feed(RandomTrace(80, kLayers, kExperts, 4, 5)), 0u);
  EXPECT_EQ(none.real.MostOverlapping(4), std::nullopt);
}

// A store may come from a larger model.
TEST(SessionPredictor, LeavesOutWhatTheModelDoesNotHave) {
  Histogram large = HistogramOf(RandomTrace(60, kLayers, kExperts, 4, 11));
  large[{kLayers + 3, 1}] = 1e6;
  large[{2, kExperts + 5}] = 1e6;
  SessionPredictor predictor({SessionOf(large)}, kLayers, kExperts, 8);
  const DemandTrace trace = RandomTrace(40, kLayers, kExperts, 4, 5);
  std::vector<ExpertKey> predicted;
  for (const ExpertKey key : trace.demands) {
    predictor.Observe(trace.layer_of(key), trace.expert_of(key), predicted);
  }
  ASSERT_FALSE(predicted.empty());
  for (const ExpertKey key : predicted) EXPECT_LT(key, kLayers * kExperts);
}

TEST(SessionPredictor, TellsTheSessionThatSharesMost) {
  const std::vector<Histogram> sessions = ThreeTopics();
  Both both(sessions, kLayers, kExperts, 5);
  const DemandTrace trace = RandomTrace(40, kLayers, kExperts, 4, 9, 22);
  both.Feed(trace);
  const Histogram own = HistogramOf(trace);
  size_t best = 0;
  double most = -1;
  for (size_t s = 0; s < sessions.size(); ++s) {
    double sum = 0;
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const auto a = Top(own, layer, 6);
      const auto b = Top(sessions[s], layer, 6);
      const std::set<size_t> of_a(a.begin(), a.end());
      double shared = 0;
      for (const size_t expert : b) shared += of_a.count(expert) > 0 ? 1 : 0;
      sum += shared / static_cast<double>(std::max(a.size(), b.size()));
    }
    if (sum > most) {
      most = sum;
      best = s;
    }
  }
  EXPECT_EQ(both.real.MostOverlapping(6), best);
}

// What is known of a session like this one makes a cold cache warm.
TEST(SessionPredictor, HelpsAColdCache) {
  const DemandTrace trace = RandomTrace(50, kLayers, kExperts, 4, 12, 20);
  std::vector<SessionHistogram> sessions;
  for (const Histogram& histogram : ThreeTopics()) sessions.push_back(SessionOf(histogram));
  SessionPredictor predictor(std::move(sessions), kLayers, kExperts, 8);
  const PrefetchReplay replay = ReplayPredictor(trace, 96, predictor);
  EXPECT_GT(replay.prefetches, 0u);
  EXPECT_GT(replay.hits, ReplayPolicy(trace, CachePolicyKind::kLru, 96));
}

}  // namespace
}  // namespace mk
