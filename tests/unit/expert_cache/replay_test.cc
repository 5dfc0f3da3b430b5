// Replays of a trace that every engine can make, against figures of the reference engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "engine/replay/markov_predictor.h"
#include "engine/replay/replay.h"

namespace mk {
namespace {

// splitmix64.
class Generator {
 public:
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_ = 1;
};

void Append(std::vector<std::byte>& bytes, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// 400 tokens, 8 layers, 4 different experts of 64 each, low ones more often.
std::vector<std::byte> GoldenBytes() {
  Generator random;
  std::vector<std::byte> bytes;
  for (size_t token = 0; token < 400; ++token) {
    for (uint32_t layer = 1; layer <= 8; ++layer) {
      std::vector<uint32_t> picked;
      while (picked.size() < 4) {
        uint64_t expert = 63;
        for (size_t i = 0; i < 3; ++i) expert = std::min(expert, random.Next() % 64);
        const auto id = static_cast<uint32_t>(expert);
        if (std::find(picked.begin(), picked.end(), id) != picked.end()) continue;
        picked.push_back(id);
        Append(bytes, layer);
        Append(bytes, id);
      }
    }
  }
  return bytes;
}

DemandTrace GoldenTrace() {
  auto trace = ParseDemandTrace(GoldenBytes());
  EXPECT_TRUE(trace) << trace.error().ToString();
  return trace ? *trace : DemandTrace();
}

TEST(Trace, IsReadAsItWasWritten) {
  const DemandTrace trace = GoldenTrace();
  EXPECT_EQ(trace.demands.size(), 12'800u);
  EXPECT_EQ(trace.DistinctKeys(), 459u);
  EXPECT_EQ(trace.layers, 9u);
  const std::array<std::pair<size_t, size_t>, 5> first = {
      {{1, 1}, {1, 0}, {1, 37}, {1, 22}, {2, 0}}};
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(trace.layer_of(trace.demands[i]), first[i].first);
    EXPECT_EQ(trace.expert_of(trace.demands[i]), first[i].second);
  }
}

TEST(Trace, RefusesWhatIsNone) {
  EXPECT_FALSE(ParseDemandTrace({}));
  EXPECT_FALSE(ParseDemandTrace(std::vector<std::byte>(12)));
  for (const auto& [layer, expert] : {std::pair{65'536u, 0u}, {0u, 65'536u}, {0xffff'ffffu, 0u}}) {
    std::vector<std::byte> bytes;
    Append(bytes, layer);
    Append(bytes, expert);
    EXPECT_FALSE(ParseDemandTrace(bytes)) << layer << " " << expert;
  }
  // Each of the numbers may be, but no model has so many of both.
  std::vector<std::byte> bytes;
  for (const uint32_t value : {0u, 65'535u, 65'535u, 0u}) Append(bytes, value);
  const auto large = ParseDemandTrace(bytes);
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(large.error().message.find("record 1"), std::string::npos) << large.error().message;
}

struct GoldenRow {
  size_t capacity;
  uint64_t lru, lfu, arc, belady;
};
constexpr std::array<GoldenRow, 5> kGolden = {{{64, 2630, 2439, 2541, 6774},
                                               {128, 5035, 5549, 5325, 9192},
                                               {256, 9618, 10295, 9733, 11535},
                                               {512, 12341, 12341, 12341, 12341},
                                               {4096, 12341, 12341, 12341, 12341}}};

TEST(Replay, FindsTheHitsOfTheReference) {
  const DemandTrace trace = GoldenTrace();
  for (const GoldenRow& row : kGolden) {
    EXPECT_EQ(ReplayPolicy(trace, CachePolicyKind::kLru, row.capacity), row.lru) << row.capacity;
    EXPECT_EQ(ReplayPolicy(trace, CachePolicyKind::kLfu, row.capacity), row.lfu) << row.capacity;
    EXPECT_EQ(ReplayPolicy(trace, CachePolicyKind::kArc, row.capacity), row.arc) << row.capacity;
    EXPECT_EQ(ReplayBelady(trace, row.capacity), row.belady) << row.capacity;
  }
}

TEST(Replay, NoPolicyBeatsBelady) {
  const DemandTrace trace = GoldenTrace();
  for (const size_t capacity : {1u, 7u, 64u, 200u, 459u, 1000u}) {
    const uint64_t best = ReplayBelady(trace, capacity);
    for (const auto kind : {CachePolicyKind::kLru, CachePolicyKind::kLfu, CachePolicyKind::kArc,
                            CachePolicyKind::kAged}) {
      EXPECT_LE(ReplayPolicy(trace, kind, capacity), best)
          << CachePolicyName(kind) << " " << capacity;
    }
  }
  EXPECT_EQ(ReplayBelady(trace, 0), 0u);
  EXPECT_EQ(ReplayPolicy(trace, CachePolicyKind::kAged, 0), 0u);
}

TEST(Replay, StackDistancesGiveTheHitsOfAllLruCaches) {
  const DemandTrace trace = GoldenTrace();
  const std::vector<uint64_t> curve = LruHitCurve(trace);
  ASSERT_EQ(curve.size(), 460u);
  for (const size_t capacity : {0u, 1u, 2u, 31u, 64u, 128u, 256u, 458u, 459u}) {
    EXPECT_EQ(curve[capacity], ReplayPolicy(trace, CachePolicyKind::kLru, capacity)) << capacity;
  }
}

// The reference's own figures vary from run to run: 27.7, 45.3, 76.9 and 96.4 %.
TEST(Replay, PredictionHitsAboutAsOftenAsInTheReference) {
  const DemandTrace trace = GoldenTrace();
  const std::array<std::pair<size_t, double>, 4> rows = {
      {{64, 27.7}, {128, 45.3}, {256, 76.9}, {512, 96.4}}};
  for (const auto& [capacity, percent] : rows) {
    const PrefetchReplay replay = ReplayMarkov(trace, capacity, 4, 4);
    EXPECT_NEAR(100.0 * static_cast<double>(replay.hits) / 12'800, percent, 0.5) << capacity;
    // Where everything fits, what was seen before is there already.
    EXPECT_EQ(replay.prefetches > 0, capacity < 459) << capacity;
  }
}

// A text that repeats asks for the same experts in the same order.
TEST(Markov, LearnsWhatFollows) {
  MarkovPredictor predictor(3, 16, 2, 2);
  std::vector<ExpertKey> predicted;
  const std::array<std::array<size_t, 2>, 6> rounds = {
      {{1, 2}, {5, 6}, {9, 10}, {3, 4}, {7, 8}, {11, 12}}};
  for (size_t pass = 0; pass < 8; ++pass) {
    for (size_t i = 0; i < rounds.size(); ++i) {
      predicted.clear();
      for (const size_t expert : rounds[i]) predictor.Observe(i % 3, expert, predicted);
      if (pass < 2) continue;
      const auto& next = rounds[(i + 1) % rounds.size()];
      const size_t layer = (i + 1) % 3;
      const std::set<ExpertKey> expected = {static_cast<ExpertKey>(layer * 16 + next[0]),
                                            static_cast<ExpertKey>(layer * 16 + next[1])};
      EXPECT_EQ(std::set<ExpertKey>(predicted.begin(), predicted.end()), expected) << pass << i;
    }
  }
  EXPECT_GT(predictor.hits() * 10, predictor.scored() * 8);
}

TEST(Markov, PredictsNothingBeforeItKnowsTheNextLayer) {
  MarkovPredictor predictor(4, 8, 2, 4);
  std::vector<ExpertKey> predicted;
  for (const size_t layer : {0u, 1u, 3u}) {
    for (const size_t expert : {1u, 1u, 2u, 3u}) predictor.Observe(layer, expert, predicted);
  }
  EXPECT_TRUE(predicted.empty());
  predictor.Observe(0, 4, predicted);
  EXPECT_TRUE(predicted.empty());
  predictor.Observe(0, 5, predicted);
  EXPECT_EQ(predicted, (std::vector<ExpertKey>{8 + 1, 8 + 2, 8 + 3}));  // by popularity
}

}  // namespace
}  // namespace mk
