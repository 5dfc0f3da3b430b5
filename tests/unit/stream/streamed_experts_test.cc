#include "engine/stream/streamed_experts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>

#include "tests/unit/stream/stream_fixture.h"

namespace mk::test {
namespace {

// Takes all experts of a request, in whatever pieces they come.
void TakeLayer(StreamedExperts& store, size_t layer, std::vector<uint32_t> experts) {
  std::vector<ExpertWeights> weights(experts.size());
  store.Request(layer, experts);
  std::span<uint32_t> pending(experts);
  while (!pending.empty()) {
    Result<size_t> ready = store.Acquire(layer, pending, weights);
    ASSERT_TRUE(ready) << ready.error().ToString();
    ASSERT_GT(*ready, 0u);
    store.Release(layer, pending.first(*ready));
    pending = pending.subspan(*ready);
  }
}

std::vector<uint32_t> AllExperts(const StreamFile& file) {
  std::vector<uint32_t> experts(file.file()->config().n_experts);
  std::iota(experts.begin(), experts.end(), 0u);
  return experts;
}

TEST(StreamedExperts, ABudgetBelowOneTokenIsRefusedWithTheOneThatIsNeeded) {
  const StreamFile file;
  StreamOptions options = file.Options(0);
  options.budget -= 1;
  const auto refused =
      StreamedExperts::Create(file.file(), file.Table(), file.top_k(), file.codebook(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  const uint64_t kib = (options.budget + 1 + 1023) / 1024;
  EXPECT_NE(refused.error().hint.find(std::to_string(kib) + " KiB"), std::string::npos)
      << refused.error().hint;
  options.budget += 1;
  EXPECT_TRUE(
      StreamedExperts::Create(file.file(), file.Table(), file.top_k(), file.codebook(), options));
}

TEST(StreamedExperts, ALayerLargerThanTheCacheIsServedInPieces) {
  const StreamFile file(reference::ExpertKind::kF32);
  auto store = file.Open(file.Options(0));
  const std::vector<uint32_t> all = AllExperts(file);
  for (int round = 0; round < 3; ++round) TakeLayer(*store, file.first_layer(), all);
  const StreamStats stats = store->Stats();
  EXPECT_EQ(stats.demands, 3 * all.size());
  EXPECT_LE(stats.cached_bytes, stats.budget);
}

TEST(StreamedExperts, AnExpertIsReadOnceHoweverManyAskForIt) {
  const StreamFile file;
  StreamOptions options = file.Options(2);
  options.fuse = false;
  options.slow_disk = {.latency_us = 20'000, .bytes_per_second = 0, .depth = 1000};
  options.io = StreamIo::kThreads;
  auto store = file.Open(options);
  const std::vector<uint32_t> some = {1, 3, 5};
  store->Prefetch(file.first_layer(), some, PrefetchSource::kLookahead);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] { TakeLayer(*store, file.first_layer(), some); });
  }
  for (std::thread& thread : threads) thread.join();
  const ExpertTable table = file.Table();
  std::vector<ExpertKey> keys;
  for (const uint32_t expert : some) keys.push_back(table.KeyOf(file.first_layer(), expert));
  ReadPlanOptions plan;
  plan.fuse = false;
  const StreamStats stats = store->Stats();
  EXPECT_EQ(stats.reads, PlanReads(table, keys, plan).size());
  EXPECT_EQ(stats.demands, 18u);
  const PrefetchStats& ahead = stats.prefetch[static_cast<size_t>(PrefetchSource::kLookahead)];
  EXPECT_EQ(ahead.useful + ahead.late, 3u);
}

TEST(StreamedExperts, WhatIsHeldStaysWhateverComes) {
  const StreamFile file;
  auto store = file.Open(file.Options(0));
  const size_t layer = file.first_layer();
  std::vector<uint32_t> held = {2};
  std::vector<ExpertWeights> weights(1);
  store->Request(layer, held);
  ASSERT_TRUE(store->Acquire(layer, held, weights));
  const ExpertMatrix before = weights[0].gate;
  std::vector<std::byte> bytes(
      PreparedExpertBytes(*file.Table()[file.Table().KeyOf(layer, 2)].parts[0]));
  const void* const memory =
      before.packed != nullptr ? static_cast<const void*>(before.packed) : before.values;
  std::memcpy(bytes.data(), memory, bytes.size());
  for (int round = 0; round < 5; ++round) {
    std::vector<uint32_t> others = AllExperts(file);
    std::erase(others, 2u);
    TakeLayer(*store, layer, others);
  }
  EXPECT_EQ(std::memcmp(bytes.data(), memory, bytes.size()), 0);
  store->Release(layer, held);
}

TEST(StreamedExperts, AnotherBudgetHoldsAtOnce) {
  const StreamFile file;
  auto store = file.Open(file.Options(2));
  TakeLayer(*store, file.first_layer(), AllExperts(file));
  const StreamStats before = store->Stats();
  EXPECT_EQ(before.evictions, 0u);
  const uint64_t smallest = StreamedExperts::SmallestBudget(file.Table(), file.top_k());
  EXPECT_FALSE(store->SetBudget(smallest - 1));
  ASSERT_TRUE(store->SetBudget(smallest));
  EXPECT_LE(store->Stats().cached_bytes, smallest);
  EXPECT_GT(store->Stats().evictions, 0u);
  TakeLayer(*store, file.first_layer(), AllExperts(file));
}

// Many threads, a small cache, predictions at random: everything comes, and in the end nothing is
// held. Under thread sanitizer this is the test of the locks.
TEST(StreamedExperts, ACrowdIsServed) {
  const StreamFile file;
  StreamOptions options = file.Options(0.05);
  options.prefetch = {true, true, true, true, true};
  auto store = file.Open(options);
  const ExpertTable table = file.Table();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int step = 0; step < 60; ++step) {
        for (size_t layer = 0; layer < table.layers(); ++layer) {
          if (!table.has_experts(layer)) continue;
          std::vector<uint32_t> experts;
          for (uint32_t e = 0; e < table.experts(); ++e) {
            if (random() % 4 == 0) experts.push_back(e);
          }
          if (experts.empty()) continue;
          store->Prefetch(layer, experts, static_cast<PrefetchSource>(random() % 5));
          TakeLayer(*store, layer, experts);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const StreamStats stats = store->Stats();
  EXPECT_EQ(stats.demands, stats.hits + stats.misses + stats.joined);
  EXPECT_LE(stats.cached_bytes, stats.budget);
}

TEST(StreamedExperts, MayEndWhileReadsAreUnderWay) {
  const StreamFile file;
  StreamOptions options = file.Options(1);
  options.slow_disk = {.latency_us = 5'000, .bytes_per_second = 1'000'000, .depth = 2};
  auto store = file.Open(options);
  store->Request(file.first_layer(), AllExperts(file));
  store->Prefetch(file.first_layer() + 1, AllExperts(file), PrefetchSource::kTable);
  store.reset();
}

}  // namespace
}  // namespace mk::test
