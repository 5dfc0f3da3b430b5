// All policies: what they promise whatever happens, and each against a slow one that is plain.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/expert_cache/cache_policy.h"

namespace mk {
namespace {

constexpr std::array kKinds = {CachePolicyKind::kLru, CachePolicyKind::kLfu, CachePolicyKind::kArc,
                               CachePolicyKind::kAged};

class Policies : public testing::TestWithParam<CachePolicyKind> {};
std::string NameOf(const testing::TestParamInfo<CachePolicyKind>& policy) {
  return std::string(CachePolicyName(policy.param));
}
INSTANTIATE_TEST_SUITE_P(All, Policies, testing::ValuesIn(kKinds), NameOf);

TEST(CachePolicyNames, AreReadBack) {
  for (const auto kind : kKinds) EXPECT_EQ(ParseCachePolicy(CachePolicyName(kind)), kind);
  EXPECT_EQ(ParseCachePolicy("fifo"), std::nullopt);
}

TEST_P(Policies, NeverHoldMoreThanTheBudgetAndTellWhatGoes) {
  constexpr size_t kKeys = 300;
  std::mt19937 random(11);
  const auto cache = CachePolicy::Create(GetParam(), kKeys, 10'000);
  std::map<ExpertKey, uint64_t> held;
  std::map<ExpertKey, size_t> pins;
  std::vector<ExpertKey> evicted;
  const auto take_away = [&] {
    for (const ExpertKey key : evicted) {
      ASSERT_EQ(held.erase(key), 1u) << key;
      ASSERT_FALSE(cache->resident(key));
      ASSERT_EQ(pins[key], 0u) << "a pinned value went";
    }
    evicted.clear();
  };
  for (size_t step = 0; step < 20'000; ++step) {
    const auto key = static_cast<ExpertKey>(std::min(random() % kKeys, random() % kKeys));
    const size_t dice = random() % 100;
    if (dice < 5 && pins[key] == 0 && cache->resident(key)) {
      cache->Pin(key);
      ++pins[key];
    } else if (dice < 15) {
      for (auto& [one, count] : pins) {
        for (; count > 0; --count) cache->Unpin(one);
      }
    } else if (dice == 15) {
      cache->SetBudget(5'000 + random() % 10'000, evicted);
      take_away();
    } else if (cache->resident(key)) {
      cache->Use(key);
    } else {
      const uint64_t bytes = 1 + random() % 400;
      const auto reason = dice < 30 ? FetchReason::kPrefetch : FetchReason::kDemand;
      const bool kept = cache->Insert(key, bytes, reason, evicted);
      take_away();
      ASSERT_EQ(kept, cache->resident(key));
      if (kept) held[key] = bytes;
      ASSERT_TRUE(!kept || cache->bytes() <= cache->budget());
    }
    uint64_t sum = 0;
    for (const auto& [one, bytes] : held) sum += bytes;
    ASSERT_EQ(sum, cache->bytes());
    ASSERT_EQ(held.size(), cache->count());
  }
}

TEST_P(Policies, DoNotKeepWhatIsLargerThanTheBudget) {
  const auto cache = CachePolicy::Create(GetParam(), 4, 100);
  std::vector<ExpertKey> evicted;
  EXPECT_TRUE(cache->Insert(0, 60, FetchReason::kDemand, evicted));
  EXPECT_FALSE(cache->Insert(1, 101, FetchReason::kDemand, evicted));
  EXPECT_TRUE(evicted.empty());
  EXPECT_TRUE(cache->resident(0));
  // Nothing can go for it.
  cache->Pin(0);
  EXPECT_FALSE(cache->Insert(2, 50, FetchReason::kDemand, evicted));
  EXPECT_TRUE(cache->resident(0));
  cache->Unpin(0);
  EXPECT_TRUE(cache->Insert(2, 50, FetchReason::kDemand, evicted));
  EXPECT_EQ(evicted, std::vector<ExpertKey>{0});
}

TEST_P(Policies, ShrinkWhenToldTo) {
  const auto cache = CachePolicy::Create(GetParam(), 100, 100);
  std::vector<ExpertKey> evicted;
  for (ExpertKey key = 0; key < 100; ++key) cache->Insert(key, 1, FetchReason::kDemand, evicted);
  ASSERT_TRUE(evicted.empty());
  for (const ExpertKey key : {3u, 5u}) cache->Use(key);
  cache->Pin(7);
  cache->SetBudget(10, evicted);
  EXPECT_EQ(evicted.size(), 90u);
  EXPECT_TRUE(cache->resident(7));
  cache->SetBudget(0, evicted);
  EXPECT_EQ(cache->count(), 1u);  // the pinned one
}

// Equal histories, equal choices.
TEST_P(Policies, AreDeterministic) {
  std::vector<std::vector<ExpertKey>> runs;
  for (size_t run = 0; run < 2; ++run) {
    std::mt19937 random(3);
    const auto cache = CachePolicy::Create(GetParam(), 200, 40);
    std::vector<ExpertKey> evicted;
    for (size_t step = 0; step < 5000; ++step) {
      const auto key = static_cast<ExpertKey>(random() % 200);
      if (cache->resident(key)) {
        cache->Use(key);
      } else {
        cache->Insert(key, 1, FetchReason::kDemand, evicted);
      }
    }
    runs.push_back(std::move(evicted));
  }
  EXPECT_EQ(runs[0], runs[1]);
}

// What goes by the definition: the smallest (uses, time of the last use), or time alone.
class PlainCache {
 public:
  PlainCache(bool counts_uses, size_t capacity) : counts_uses_(counts_uses), capacity_(capacity) {}

  bool Access(ExpertKey key) {
    ++now_;
    const auto found = held_.find(key);
    if (found != held_.end()) {
      ++found->second.first;
      found->second.second = now_;
      return true;
    }
    if (held_.size() == capacity_) {
      held_.erase(std::min_element(held_.begin(), held_.end(), [&](const auto& a, const auto& b) {
        return Rank(a.second) < Rank(b.second);
      }));
    }
    held_[key] = {1, now_};
    return false;
  }

 private:
  using Use = std::pair<uint64_t, uint64_t>;  // uses, last
  Use Rank(const Use& use) const { return {counts_uses_ ? use.first : 0, use.second}; }

  const bool counts_uses_;
  const size_t capacity_;
  uint64_t now_ = 0;
  std::map<ExpertKey, Use> held_;
};

TEST(LruAndLfu, DoWhatTheirNamesSay) {
  for (const auto kind : {CachePolicyKind::kLru, CachePolicyKind::kLfu}) {
    const auto cache = CachePolicy::Create(kind, 100, 20);
    PlainCache plain(kind == CachePolicyKind::kLfu, 20);
    std::mt19937 random(5);
    std::vector<ExpertKey> evicted;
    for (size_t step = 0; step < 20'000; ++step) {
      const auto key = static_cast<ExpertKey>(std::min(random() % 100, random() % 100));
      const bool hit = cache->resident(key);
      ASSERT_EQ(hit, plain.Access(key)) << CachePolicyName(kind) << " " << step;
      if (hit) {
        cache->Use(key);
      } else {
        cache->Insert(key, 1, FetchReason::kDemand, evicted);
      }
    }
  }
}

uint64_t HitsAfterAChangeOfTopic(CachePolicyKind kind) {
  const auto cache = CachePolicy::Create(kind, 400, 160);
  std::vector<ExpertKey> evicted;
  const auto access = [&](ExpertKey key) {
    if (cache->resident(key)) {
      cache->Use(key);
      return true;
    }
    cache->Insert(key, 1, FetchReason::kDemand, evicted);
    return false;
  };
  for (size_t round = 0; round < 3; ++round) {
    for (ExpertKey key = 0; key < 160; ++key) access(key);
  }
  uint64_t hits = 0;
  for (size_t round = 0; round < 20; ++round) {
    for (ExpertKey key = 200; key < 320; ++key) hits += access(key) ? 1 : 0;
  }
  return hits;
}

// 120 experts, 20 times: all but the first time could be hits. Figures of lru, lfu and arc are
// those of the reference's own simulation.
TEST(Topics, CountsThatDoNotAgeNeverFollowANewOne) {
  EXPECT_EQ(HitsAfterAChangeOfTopic(CachePolicyKind::kLru), 2280u);
  EXPECT_EQ(HitsAfterAChangeOfTopic(CachePolicyKind::kLfu), 0u);
  EXPECT_EQ(HitsAfterAChangeOfTopic(CachePolicyKind::kArc), 2161u);
  EXPECT_GT(HitsAfterAChangeOfTopic(CachePolicyKind::kAged), 1700u);
}

// A scan of experts that are used once does not drive out what is used all the time.
TEST(Topics, AScanLeavesTheHotOnes) {
  const auto cache = CachePolicy::Create(CachePolicyKind::kAged, 2000, 100);
  std::vector<ExpertKey> evicted;
  const auto access = [&](ExpertKey key) {
    const bool hit = cache->resident(key);
    if (hit) {
      cache->Use(key);
    } else {
      cache->Insert(key, 1, FetchReason::kDemand, evicted);
    }
    return hit;
  };
  for (size_t round = 0; round < 10; ++round) {
    for (ExpertKey key = 0; key < 80; ++key) access(key);
  }
  for (ExpertKey key = 1000; key < 1500; ++key) access(key);
  size_t hits = 0;
  for (ExpertKey key = 0; key < 80; ++key) hits += access(key) ? 1 : 0;
  EXPECT_GE(hits, 78u);
}

}  // namespace
}  // namespace mk
