// Passes that do not wait: what is in memory is used, shadows stand in for the rest, and what they
// stood in for is there the next time.

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/unit/stream/stream_fixture.h"

namespace mk::test {
namespace {

// Shadows that can be told from the experts: none of their matrices has a row.
class FakeShadows final : public ExpertShadows {
 public:
  ExpertWeights Get(size_t /*layer*/, uint32_t /*expert*/) const override { return {}; }
  uint64_t resident_bytes() const override { return 12345; }
};

TEST(ShadowAccess, NothingIsWaitedForAndTheNextTimeItIsThere) {
  const StreamFile file;
  StreamOptions options = file.Options(2);
  options.slow_disk = {.latency_us = 50'000, .bytes_per_second = 0, .depth = 1000};
  auto store = file.Open(options);
  store->SetShadows(std::make_unique<FakeShadows>());
  const size_t layer = file.first_layer();
  std::vector<uint32_t> experts = {0, 2, 3};
  std::vector<ExpertWeights> weights(3);
  ASSERT_TRUE(store->AcquireNow(layer, experts, weights));
  for (const ExpertWeights& one : weights) EXPECT_TRUE(one.shadow);
  EXPECT_EQ(store->Stats().shadowed, 3u);
  EXPECT_EQ(store->Stats().stall_ns, 0u);
  EXPECT_EQ(store->Stats().shadow_bytes, 12345u);
  while (store->Stats().cached_experts < 3) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  experts.push_back(1);
  weights.resize(4);
  ASSERT_TRUE(store->AcquireNow(layer, experts, weights));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(weights[i].shadow, experts[i] == 1);
  store->Release(layer, std::span(experts).first(3));
  const StreamStats stats = store->Stats();
  EXPECT_EQ(stats.demands, stats.hits + stats.misses + stats.joined + stats.shadowed);
}

TEST(ShadowAccess, AStoreWithoutShadowsWaits) {
  const StreamFile file;
  auto store = file.Open(file.Options(0));
  std::vector<uint32_t> experts(file.top_k());
  std::iota(experts.begin(), experts.end(), 0u);
  std::vector<ExpertWeights> weights(experts.size());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(store->AcquireNow(file.first_layer(), experts, weights));
    for (const ExpertWeights& one : weights) {
      EXPECT_FALSE(one.shadow);
      EXPECT_GT(one.gate.rows, 0u);
    }
    store->Release(file.first_layer(), experts);
  }
}

}  // namespace
}  // namespace mk::test
