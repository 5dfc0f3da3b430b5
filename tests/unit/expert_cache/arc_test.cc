#include "engine/expert_cache/arc_policy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace mk {
namespace {

constexpr uint64_t kUnit = 1000;

class Cache {
 public:
  Cache(size_t keys, uint64_t units) : policy(keys, units * kUnit) {}

  void Insert(ExpertKey key, FetchReason reason = FetchReason::kDemand) {
    policy.Insert(key, kUnit, reason, evicted);
  }
  void Access(ExpertKey key) {
    if (policy.resident(key)) {
      policy.Use(key);
    } else {
      Insert(key);
    }
  }

  ArcPolicy policy;
  std::vector<ExpertKey> evicted;
};

TEST(Arc, ReplacesAndRemembers) {
  Cache cache(16, 3);
  for (const ExpertKey key : {1u, 2u, 3u}) cache.Insert(key);
  cache.policy.Use(1);
  cache.Insert(4);
  EXPECT_EQ(cache.policy.list_of(1), ArcPolicy::kT2);
  EXPECT_EQ(cache.policy.list_of(3), ArcPolicy::kT1);
  EXPECT_EQ(cache.policy.list_of(4), ArcPolicy::kT1);
  EXPECT_EQ(cache.policy.list_of(2), ArcPolicy::kB1);
  EXPECT_EQ(cache.policy.bytes(), 3 * kUnit);
  EXPECT_EQ(cache.evicted, std::vector<ExpertKey>{2});
  // It comes back: the part for what was used once was too small.
  cache.Insert(2);
  EXPECT_EQ(cache.policy.list_of(2), ArcPolicy::kT2);
  EXPECT_EQ(cache.policy.target(), kUnit);
}

TEST(Arc, KeepsWhatIsUsedAgainThroughAScan) {
  Cache cache(64, 4);
  for (const ExpertKey key : {10u, 11u}) {
    cache.Insert(key);
    cache.policy.Use(key);
  }
  for (ExpertKey key = 20; key < 28; ++key) cache.Insert(key);
  EXPECT_TRUE(cache.policy.resident(10));
  EXPECT_TRUE(cache.policy.resident(11));
}

TEST(Arc, ItsListsAddUpAtEveryStep) {
  Cache cache(64, 16);
  std::mt19937 random(7);
  for (size_t step = 0; step < 4000; ++step) {
    cache.Access(random() % 64);
    const ArcPolicy& policy = cache.policy;
    const uint64_t held = policy.list_bytes(ArcPolicy::kT1) + policy.list_bytes(ArcPolicy::kT2);
    ASSERT_EQ(held, policy.bytes());
    ASSERT_LE(held, policy.budget());
    ASSERT_LE(policy.list_bytes(ArcPolicy::kT1) + policy.list_bytes(ArcPolicy::kB1),
              policy.budget());
    ASSERT_LE(held + policy.list_bytes(ArcPolicy::kB1) + policy.list_bytes(ArcPolicy::kB2),
              2 * policy.budget());
    for (ExpertKey key = 0; key < 64; ++key) {
      const bool in =
          policy.list_of(key) == ArcPolicy::kT1 || policy.list_of(key) == ArcPolicy::kT2;
      ASSERT_EQ(policy.resident(key), in);
    }
  }
}

TEST(Arc, AGuessTeachesNothing) {
  Cache cache(16, 3);
  for (const ExpertKey key : {1u, 2u, 3u}) cache.Insert(key);
  cache.policy.Use(1);
  cache.Insert(4);  // 2 goes and is remembered
  cache.Insert(2, FetchReason::kPrefetch);
  EXPECT_EQ(cache.policy.target(), 0u);
  EXPECT_EQ(cache.policy.list_of(2), ArcPolicy::kT1);
  cache.policy.Use(2);  // its first use
  EXPECT_EQ(cache.policy.list_of(2), ArcPolicy::kT1);
  cache.policy.Use(2);
  EXPECT_EQ(cache.policy.list_of(2), ArcPolicy::kT2);
}

}  // namespace
}  // namespace mk
