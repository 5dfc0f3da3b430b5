// The prefix cache with sequences that are nothing but their tokens.

#include "daemon/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "fake_states.h"

namespace mk::daemon {
namespace {

using Ids = std::vector<int32_t>;
constexpr PrefixKind kKind{Precision::kExact, true};

Ids Count(size_t n, int32_t first = 0) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids Join(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  // Bytes that a state of n tokens costs.
  static uint64_t Cost(size_t tokens, size_t logits = 0) {
    return FakeSequence().state_bytes() + 4 * (tokens + logits);
  }

  std::shared_ptr<PrefixShelf> Shelf(PrefixCache& cache, size_t block = kPrefillBlock) {
    auto model = std::make_shared<FakeModel>();
    model->mutable_info().prompt_block = block;
    return cache.NewShelf(std::move(model));
  }

  static void Put(PrefixShelf& shelf, const Ids& ids, bool end = true, PrefixKind kind = kKind) {
    FakeSequence state;
    state.tokens = ids;
    const std::vector<float> logits = {static_cast<float>(ids.size())};
    shelf.Store(kind, ids, state, end ? std::span<const float>(logits) : std::span<const float>());
  }

  // Tokens that a lookup finds; checks that the state is theirs.
  static size_t Found(PrefixShelf& shelf, const Ids& prompt, PrefixKind kind = kKind) {
    auto found = shelf.Find(kind, prompt);
    if (!found.state) {
      EXPECT_EQ(found.tokens, 0U);
      return 0;
    }
    const Ids& held = static_cast<FakeSequence&>(*found.state).tokens;
    EXPECT_EQ(held.size(), found.tokens);
    EXPECT_TRUE(std::equal(held.begin(), held.end(), prompt.begin()));
    EXPECT_EQ(!found.logits.empty(), found.tokens == prompt.size());
    return found.tokens;
  }

  Ledger ledger_{1'000'000};
  PrefixCache cache_{ledger_, 100'000};
};

TEST(Usable, NoStateInsideABlockThatIsReadAsAWhole) {
  EXPECT_TRUE(Usable(64, 64, 64));
  EXPECT_TRUE(Usable(64, 1000, 64));
  EXPECT_TRUE(Usable(100, 100, 64));
  EXPECT_TRUE(Usable(100, 127, 64));   // what is left is read token by token in both
  EXPECT_FALSE(Usable(100, 128, 64));  // the second block would be read as one
  EXPECT_FALSE(Usable(1, 64, 64));
  EXPECT_TRUE(Usable(1, 63, 64));
  EXPECT_FALSE(Usable(65, 64, 64));
  EXPECT_TRUE(Usable(100, 128, 1));
  EXPECT_TRUE(Usable(1, 64, 1));
}

TEST_F(PrefixCacheTest, FindsTheLongestUsableBeginning) {
  auto shelf = Shelf(cache_);
  Put(*shelf, Count(64), false);
  Put(*shelf, Count(100));
  Put(*shelf, Count(128), false);
  EXPECT_EQ(Found(*shelf, Count(63)), 0U);
  EXPECT_EQ(Found(*shelf, Count(65)), 64U);
  EXPECT_EQ(Found(*shelf, Count(100)), 100U);
  EXPECT_EQ(Found(*shelf, Count(127)), 100U);
  EXPECT_EQ(Found(*shelf, Count(400)), 128U);
  EXPECT_EQ(Found(*shelf, Join(Count(110), {7, 7})), 100U);
  EXPECT_EQ(Found(*shelf, Join(Count(110), Count(50))), 64U);
  EXPECT_EQ(Found(*shelf, Join(Count(99), Count(50))), 64U);
  EXPECT_EQ(Found(*shelf, Count(100, 1)), 0U);
  // A whole prompt needs its logits.
  EXPECT_EQ(Found(*shelf, Count(64)), 0U);
  EXPECT_EQ(Found(*shelf, Count(128)), 64U);
}

TEST_F(PrefixCacheTest, ModelsThatReadTokenByTokenGoOnFromAnywhere) {
  auto shelf = Shelf(cache_, 1);
  Put(*shelf, Count(100));
  EXPECT_EQ(Found(*shelf, Count(128)), 100U);
  auto k3 = Shelf(cache_);
  Put(*k3, Count(100), true, {Precision::kExact, false});
  EXPECT_EQ(Found(*k3, Count(128), {Precision::kExact, false}), 100U);
}

TEST_F(PrefixCacheTest, ArithmeticsAndModelsAreKeptApart) {
  auto shelf = Shelf(cache_);
  auto other = Shelf(cache_);
  Put(*shelf, Count(64));
  EXPECT_EQ(Found(*shelf, Count(70), {Precision::kQ8, true}), 0U);
  EXPECT_EQ(Found(*shelf, Count(70), {Precision::kExact, false}), 0U);
  EXPECT_EQ(Found(*other, Count(70)), 0U);
  EXPECT_EQ(Found(*shelf, Count(70)), 64U);
}

TEST_F(PrefixCacheTest, TellsHowMuchPromptsShare) {
  auto shelf = Shelf(cache_);
  Put(*shelf, Join(Count(200), {1}));
  EXPECT_EQ(shelf->Find(kKind, Join(Count(200), {2, 3})).shared, 200U);
  EXPECT_EQ(shelf->Marks(kKind, 0, 200, 202), (std::vector<size_t>{192, 202}));
  EXPECT_EQ(shelf->Marks(kKind, 192, 200, 202), (std::vector<size_t>{202}));
  EXPECT_EQ(shelf->Marks(kKind, 0, 150, 202), (std::vector<size_t>{128, 192, 202}));
  EXPECT_EQ(shelf->Marks(kKind, 0, 0, 192), (std::vector<size_t>{128, 192}));
  EXPECT_EQ(shelf->Marks(kKind, 0, 0, 127), (std::vector<size_t>{127}));  // too short to be cut
  EXPECT_TRUE(shelf->Marks(kKind, 202, 202, 202).empty());
  auto byte = Shelf(cache_, 1);
  EXPECT_EQ(byte->Marks(kKind, 0, 200, 300), (std::vector<size_t>{192, 300}));
}

TEST_F(PrefixCacheTest, AStateIsKeptOnce) {
  auto shelf = Shelf(cache_);
  Put(*shelf, Count(64), false);
  Put(*shelf, Count(64), true);  // the same place, as the end of a prompt
  EXPECT_EQ(cache_.counts().states, 1U);
  EXPECT_EQ(Found(*shelf, Count(64)), 64U);
}

TEST_F(PrefixCacheTest, ACopyGoesItsOwnWay) {
  auto shelf = Shelf(cache_);
  Put(*shelf, Count(64));
  auto found = shelf->Find(kKind, Count(70));
  static_cast<FakeSequence&>(*found.state).tokens.push_back(99);
  EXPECT_EQ(Found(*shelf, Count(70)), 64U);
}

TEST_F(PrefixCacheTest, TheLeastUsefulGoesFirst) {
  PrefixCache cache(ledger_, 3 * Cost(64, 1));
  auto shelf = Shelf(cache);
  auto other = Shelf(cache);
  Put(*shelf, Count(64, 1000));
  Put(*other, Count(64, 2000));
  Put(*shelf, Count(64, 3000));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Found(*shelf, Count(65, 1000)), 64U);
  Put(*shelf, Count(64, 4000));  // the second is the oldest of those without a hit
  EXPECT_EQ(cache.counts().states, 3U);
  EXPECT_EQ(cache.counts().evicted, 1U);
  EXPECT_EQ(Found(*other, Count(65, 2000)), 0U);
  EXPECT_EQ(Found(*shelf, Count(65, 1000)), 64U);
  EXPECT_EQ(Found(*shelf, Count(65, 3000)), 64U);
  EXPECT_EQ(Found(*shelf, Count(65, 4000)), 64U);
}

TEST_F(PrefixCacheTest, OldFameFades) {
  PrefixCache cache(ledger_, 2 * Cost(64, 1));
  auto shelf = Shelf(cache);
  Put(*shelf, Count(64, 1000));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Found(*shelf, Count(65, 1000)), 64U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Found(*shelf, Count(65, 5000)), 0U);
  Put(*shelf, Count(64, 2000));
  Put(*shelf, Count(64, 3000));
  EXPECT_EQ(Found(*shelf, Count(65, 1000)), 0U);
  EXPECT_EQ(Found(*shelf, Count(65, 2000)), 64U);
}

TEST_F(PrefixCacheTest, StaysWithinItsLimitAndTheLedger) {
  PrefixCache cache(ledger_, Cost(64, 1) - 1);
  auto shelf = Shelf(cache);
  Put(*shelf, Count(64));
  EXPECT_EQ(cache.counts().states, 0U);  // larger than all there is
  cache.SetLimit(10 * Cost(64, 1));
  for (int32_t i = 0; i < 30; ++i) {
    Put(*shelf, Count(64, 100 * i));
    EXPECT_LE(cache.counts().bytes, 10 * Cost(64, 1));
    EXPECT_EQ(ledger_.used(MemoryUse::kPrefixes), cache.counts().bytes);
  }
  EXPECT_EQ(cache.counts().states, 10U);
  cache.SetLimit(3 * Cost(64, 1));
  EXPECT_EQ(cache.counts().states, 3U);
  cache.SetLimit(0);
  EXPECT_EQ(cache.counts().states, 0U);
  EXPECT_EQ(ledger_.used(), 0U);
  Put(*shelf, Count(64));
  EXPECT_EQ(cache.counts().states, 0U);
}

TEST_F(PrefixCacheTest, GivesWayToOthers) {
  auto shelf = Shelf(cache_);
  for (int32_t i = 0; i < 5; ++i) Put(*shelf, Count(64, 100 * i));
  EXPECT_EQ(cache_.Reclaim(Cost(64, 1) + 1), 2 * Cost(64, 1));
  EXPECT_EQ(cache_.counts().states, 3U);
  EXPECT_EQ(cache_.Reclaim(1'000'000), 3 * Cost(64, 1));
  EXPECT_EQ(cache_.Reclaim(1), 0U);
  // A full ledger: its own states go before it gives up.
  auto held = ledger_.Reserve(MemoryUse::kModels, 1'000'000 - Cost(64, 1));
  Put(*shelf, Count(64, 1));
  Put(*shelf, Count(64, 2));
  EXPECT_EQ(cache_.counts().states, 1U);
  EXPECT_EQ(Found(*shelf, Count(65, 2)), 64U);
}

TEST_F(PrefixCacheTest, StatesGoWithTheirModel) {
  auto shelf = Shelf(cache_);
  auto other = Shelf(cache_);
  Put(*shelf, Count(64));
  Put(*other, Count(64));
  shelf.reset();
  EXPECT_EQ(cache_.counts().states, 1U);
  EXPECT_EQ(ledger_.used(), Cost(64, 1));
  EXPECT_EQ(cache_.counts().bytes, Cost(64, 1));
  EXPECT_EQ(Found(*other, Count(65)), 64U);
}

// ---- What states share ----

class SharedPrefixTest : public PrefixCacheTest {
 protected:
  static constexpr uint64_t kFixed = PagedSequence::kFixedBytes;
  static constexpr uint64_t kPage = PagedSequence::kPageBytes;

  // A state of its own of the first n numbers.
  static PagedSequence Read(size_t n) {
    PagedSequence state;
    state.Read(Count(n));
    return state;
  }
  static void Put(PrefixShelf& shelf, const PagedSequence& state) {
    shelf.Store(kKind, state.tokens(), state, {});
  }

  std::shared_ptr<PrefixShelf> shelf_ = cache_.NewShelf(std::make_shared<PagedModel>());
};

TEST_F(SharedPrefixTest, WhatTwoStatesShareIsChargedOnce) {
  PagedSequence run = Read(128);
  Put(*shelf_, run);
  EXPECT_EQ(cache_.counts().bytes, kFixed + 2 * kPage + 4 * 128);
  run.Read(Count(100, 128));
  Put(*shelf_, run);
  // Its own fixed part and two pages of its own beside the two that both have.
  EXPECT_EQ(cache_.counts().bytes, 2 * kFixed + 4 * kPage + 4 * (128 + 228));
  EXPECT_EQ(ledger_.used(), cache_.counts().bytes);
  // One that was read by itself shares nothing, though its tokens are those of the others.
  Put(*shelf_, Read(192));
  EXPECT_EQ(cache_.counts().bytes, 3 * kFixed + 7 * kPage + 4 * (128 + 228 + 192));
}

TEST_F(SharedPrefixTest, ForgettingOneFreesWhatNobodyElseHolds) {
  PagedSequence run = Read(128);
  Put(*shelf_, run);
  run.Read(Count(64, 128));
  Put(*shelf_, run);
  const auto list = cache_.List();
  ASSERT_EQ(list[0].states.size(), 2U);
  EXPECT_EQ(list[0].states[0].bytes, kFixed + 2 * kPage + 4 * 128);
  EXPECT_EQ(list[0].states[0].own_bytes, kFixed + 4 * 128);
  EXPECT_EQ(list[0].states[1].own_bytes, kFixed + kPage + 4 * 192);
  const uint64_t before = ledger_.used();
  // The older one goes: its pages stay with the other.
  EXPECT_EQ(cache_.Reclaim(1), kFixed + 4 * 128);
  EXPECT_EQ(ledger_.used(), before - kFixed - 4 * 128);
  EXPECT_EQ(cache_.List()[0].states[0].own_bytes, kFixed + 3 * kPage + 4 * 192);
  EXPECT_EQ(cache_.Reclaim(1), kFixed + 3 * kPage + 4 * 192);
  EXPECT_EQ(ledger_.used(), 0U);
}

TEST_F(SharedPrefixTest, ManyGoUntilEnoughIsFree) {
  PagedSequence run;
  for (int i = 0; i < 6; ++i) {
    run.Read(Count(64, 64 * i));
    Put(*shelf_, run);
  }
  const uint64_t before = cache_.counts().bytes;
  const uint64_t freed = cache_.Reclaim(2 * kFixed + 1);
  EXPECT_GT(freed, 2 * kFixed);
  EXPECT_EQ(before - cache_.counts().bytes, freed);
  EXPECT_EQ(cache_.counts().states, 4U);
  EXPECT_EQ(ledger_.used(), cache_.counts().bytes);
}

TEST_F(SharedPrefixTest, RoomForOneIsNotMadeOfItsOwnPages) {
  PrefixCache cache(ledger_, kFixed + 3 * kPage + 4 * 192);
  auto shelf = cache.NewShelf(std::make_shared<PagedModel>());
  PagedSequence run = Read(128);
  Put(*shelf, run);
  run.Read(Count(64, 128));
  Put(*shelf, run);  // fits exactly, once the first has gone but for its pages
  EXPECT_EQ(cache.counts().states, 1U);
  EXPECT_EQ(cache.counts().bytes, kFixed + 3 * kPage + 4 * 192);
  run.Read(Count(64, 192));
  Put(*shelf, run);  // does not fit: nothing is charged for it, and nothing goes for it
  EXPECT_EQ(cache.counts().states, 1U);
  EXPECT_EQ(cache.counts().bytes, kFixed + 3 * kPage + 4 * 192);
  shelf.reset();
  EXPECT_EQ(ledger_.used(), 0U);
}

}  // namespace
}  // namespace mk::daemon
