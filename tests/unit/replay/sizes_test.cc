// Budgets in bytes, passes, and traces that run together.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <list>
#include <numeric>

#include "engine/replay/replay.h"
#include "tests/unit/replay/random_trace.h"

namespace mk {
namespace {

using test::RandomTrace;

TEST(Passes, BeginWhereLayersGoDown) {
  const DemandTrace trace = RandomTrace(5, 3, 16, 2, 1);
  EXPECT_EQ(trace.PassStarts(), (std::vector<size_t>{0, 6, 12, 18, 24, 30}));
  EXPECT_EQ(trace.FirstPasses(2).demands.size(), 12u);
  EXPECT_EQ(trace.FirstPasses(0).demands.size(), 0u);
  EXPECT_EQ(trace.FirstPasses(99).demands, trace.demands);
}

TEST(Interleave, GivesEveryTraceAPassInTurn) {
  const DemandTrace a = RandomTrace(3, 2, 8, 2, 1);
  const DemandTrace b = RandomTrace(1, 4, 16, 1, 2);
  const std::vector<DemandTrace> both = {a, b};
  const DemandTrace all = Interleave(both);
  EXPECT_EQ(all.layers, 4u);
  EXPECT_EQ(all.experts, 16u);
  std::vector<std::pair<size_t, size_t>> expected;
  const auto append = [&](const DemandTrace& trace, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      expected.emplace_back(trace.layer_of(trace.demands[i]), trace.expert_of(trace.demands[i]));
    }
  };
  append(a, 0, 4);
  append(b, 0, 4);
  append(a, 4, 8);
  append(a, 8, 12);
  ASSERT_EQ(all.demands.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(all.layer_of(all.demands[i]), expected[i].first) << i;
    EXPECT_EQ(all.expert_of(all.demands[i]), expected[i].second) << i;
  }
}

TEST(Sizes, OfOneKindAreEntries) {
  const DemandTrace entries = RandomTrace(100, 4, 32, 3, 3);
  DemandTrace bytes = entries;
  bytes.sizes.assign(bytes.keys(), 1000);
  for (const uint64_t capacity : {1u, 13u, 40u, 128u}) {
    EXPECT_EQ(ReplayBelady(bytes, capacity * 1000 + 999), ReplayBelady(entries, capacity));
    // The window of the aged policy is a share of the bytes, rounded in another way.
    for (const auto kind : {CachePolicyKind::kLru, CachePolicyKind::kLfu, CachePolicyKind::kArc}) {
      EXPECT_EQ(ReplayPolicy(bytes, kind, capacity * 1000), ReplayPolicy(entries, kind, capacity));
    }
  }
}

// Half of the experts are an eighth as large.
DemandTrace MixedTrace(size_t passes) {
  DemandTrace trace = RandomTrace(passes, 4, 32, 3, 4);
  for (size_t key = 0; key < trace.keys(); ++key) trace.sizes.push_back(key % 2 == 0 ? 800 : 100);
  return trace;
}

TEST(Sizes, OfSeveralKindsAreCountedInBytes) {
  const DemandTrace trace = MixedTrace(100);
  for (const uint64_t budget : {100u, 799u, 3000u, 20'000u, 57'600u}) {
    std::list<ExpertKey> held;  // the last one used first
    uint64_t bytes = 0;
    uint64_t hits = 0;
    for (const ExpertKey key : trace.demands) {
      const auto found = std::find(held.begin(), held.end(), key);
      if (found != held.end()) {
        ++hits;
        held.splice(held.begin(), held, found);
        continue;
      }
      if (trace.size_of(key) > budget) continue;
      for (bytes += trace.size_of(key); bytes > budget; held.pop_back()) {
        bytes -= trace.size_of(held.back());
      }
      held.push_front(key);
    }
    EXPECT_EQ(ReplayPolicy(trace, CachePolicyKind::kLru, budget), hits) << budget;
  }
  // All of it.
  const uint64_t all = std::accumulate(trace.sizes.begin(), trace.sizes.end(), uint64_t{0});
  EXPECT_EQ(ReplayBelady(trace, all), trace.demands.size() - trace.DistinctKeys());
}

// Farthest next use first, found by looking.
TEST(Sizes, BeladyDropsWhatIsUsedAgainLast) {
  const DemandTrace trace = MixedTrace(12);
  const auto next_use = [&](ExpertKey key, size_t after) {
    const auto from = trace.demands.begin() + static_cast<std::ptrdiff_t>(after) + 1;
    return std::find(from, trace.demands.end(), key) - trace.demands.begin();
  };
  for (const uint64_t budget : {500u, 2500u, 9000u}) {
    std::vector<ExpertKey> held;
    uint64_t bytes = 0;
    uint64_t hits = 0;
    for (size_t i = 0; i < trace.demands.size(); ++i) {
      const ExpertKey key = trace.demands[i];
      if (std::find(held.begin(), held.end(), key) != held.end()) {
        ++hits;
        continue;
      }
      if (trace.size_of(key) > budget) continue;
      while (bytes + trace.size_of(key) > budget) {
        const auto victim = std::max_element(held.begin(), held.end(), [&](auto a, auto b) {
          return std::pair(next_use(a, i), a) < std::pair(next_use(b, i), b);
        });
        bytes -= trace.size_of(*victim);
        held.erase(victim);
      }
      held.push_back(key);
      bytes += trace.size_of(key);
    }
    EXPECT_EQ(ReplayBelady(trace, budget), hits) << budget;
  }
}

// All choices of victims tried: nothing beats Belady where sizes are alike.
TEST(Belady, IsTheBestOfAllChoices) {
  const DemandTrace trace = RandomTrace(4, 1, 6, 4, 5);
  std::function<uint64_t(size_t, std::vector<ExpertKey>)> best = [&](size_t i,
                                                                     std::vector<ExpertKey> held) {
    if (i == trace.demands.size()) return uint64_t{0};
    const ExpertKey key = trace.demands[i];
    if (std::find(held.begin(), held.end(), key) != held.end()) return 1 + best(i + 1, held);
    if (held.size() < 3) {
      held.push_back(key);
      return best(i + 1, held);
    }
    uint64_t most = 0;
    for (ExpertKey& slot : held) {
      const ExpertKey old = std::exchange(slot, key);
      most = std::max(most, best(i + 1, held));
      slot = old;
    }
    return most;
  };
  EXPECT_EQ(ReplayBelady(trace, 3), best(0, {}));
}

}  // namespace
}  // namespace mk
