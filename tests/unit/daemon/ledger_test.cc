#include "daemon/ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace mk::daemon {
namespace {

TEST(Ledger, RefusesWhatDoesNotFitAndGetsItBack) {
  Ledger ledger(100);
  auto first = ledger.Reserve(MemoryUse::kModels, 60);
  ASSERT_TRUE(first);
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kSequences, 41));
  auto second = ledger.Reserve(MemoryUse::kSequences, 40);
  ASSERT_TRUE(second);
  EXPECT_EQ(ledger.used(), 100U);
  EXPECT_EQ(ledger.used(MemoryUse::kModels), 60U);
  first->Release();
  first->Release();  // once is enough
  EXPECT_EQ(ledger.used(), 40U);
  EXPECT_EQ(ledger.available(), 60U);
}

TEST(Ledger, BooksWhatIsInUseAlreadyBeyondTheBudget) {
  Ledger ledger(100);
  auto reserved = ledger.Reserve(MemoryUse::kModels, 90);
  {
    const Reservation booked = ledger.Book(MemoryUse::kModels, 50);
    EXPECT_EQ(booked.bytes(), 50U);
    EXPECT_EQ(ledger.used(MemoryUse::kModels), 140U);
    EXPECT_EQ(ledger.available(), 0U);
    EXPECT_FALSE(ledger.Reserve(MemoryUse::kSequences, 0));
  }
  EXPECT_EQ(ledger.used(), 90U);
  EXPECT_EQ(ledger.available(), 10U);
}

TEST(Ledger, HugeRequestsDoNotWrapAround) {
  Ledger ledger(100);
  auto held = ledger.Reserve(MemoryUse::kModels, 50);
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kModels, std::numeric_limits<uint64_t>::max()));
  EXPECT_EQ(ledger.used(), 50U);
}

TEST(Ledger, TakesBackFromPrefixesWhatSomebodyElseNeeds) {
  Ledger ledger(100);
  std::vector<Reservation> prefixes;
  for (int i = 0; i < 4; ++i) prefixes.push_back(*ledger.Reserve(MemoryUse::kPrefixes, 20));
  std::vector<uint64_t> asked;
  ledger.SetReclaim([&](uint64_t bytes) {
    asked.push_back(bytes);
    if (prefixes.empty()) return uint64_t{0};
    prefixes.pop_back();
    return uint64_t{20};
  });
  EXPECT_EQ(ledger.available(), 100U);                     // they count as free
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kPrefixes, 21));  // not for their own kind
  EXPECT_TRUE(asked.empty());
  auto taken = ledger.Reserve(MemoryUse::kSequences, 55);
  ASSERT_TRUE(taken);
  EXPECT_EQ(asked, (std::vector<uint64_t>{35, 15}));
  EXPECT_EQ(ledger.used(), 95U);
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kModels, 46));  // nothing is given up in vain
  EXPECT_EQ(prefixes.size(), 2U);
  EXPECT_EQ(ledger.Missing(46), 1U);
  EXPECT_EQ(ledger.Missing(45), 0U);
  EXPECT_EQ(ledger.used(), 95U);
}

TEST(Ledger, AHugeRequestBeyondALoweredBudgetDoesNotWrapAround) {
  Ledger ledger(100);
  auto held = ledger.Reserve(MemoryUse::kModels, 90);
  ledger.SetBudget(89);
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kModels, std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(ledger.Reserve(MemoryUse::kModels, std::numeric_limits<uint64_t>::max() - 1));
  EXPECT_EQ(ledger.used(), 90U);
}

TEST(Ledger, TellsWhatIsMissing) {
  Ledger ledger(100);
  auto held = ledger.Reserve(MemoryUse::kModels, 60);
  EXPECT_EQ(ledger.Missing(40), 0U);
  EXPECT_EQ(ledger.Missing(41), 1U);
  EXPECT_EQ(ledger.Missing(UINT64_MAX), UINT64_MAX);
  ledger.SetBudget(50);  // overdrawn by 10
  EXPECT_EQ(ledger.Missing(0), 10U);
  EXPECT_EQ(ledger.Missing(5), 15U);
}

TEST(Ledger, AssigningAReservationReleasesTheOldOne) {
  Ledger ledger(100);
  Reservation held = *ledger.Reserve(MemoryUse::kModels, 10);
  held = *ledger.Reserve(MemoryUse::kSequences, 30);
  EXPECT_EQ(ledger.used(), 30U);
  EXPECT_EQ(ledger.used(MemoryUse::kModels), 0U);
}

TEST(Ledger, NeverPromisesMoreThanTheBudgetToManyThreads) {
  Ledger ledger(1000);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        auto held = ledger.Reserve(MemoryUse::kSequences, 300);
        if (ledger.used() > 1000) over = true;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(over);
  EXPECT_EQ(ledger.used(), 0U);
}

TEST(Ledger, ReservationsCanBeJoinedAndMadeSmaller) {
  Ledger ledger(100);
  auto a = ledger.Reserve(MemoryUse::kSequences, 30);
  auto b = ledger.Reserve(MemoryUse::kSequences, 20);
  ASSERT_TRUE(a && b);
  a->Add(std::move(*b));
  EXPECT_EQ(a->bytes(), 50U);
  EXPECT_EQ(b->bytes(), 0U);
  a->Shrink(60);
  EXPECT_EQ(ledger.used(), 50U);
  a->Shrink(15);
  EXPECT_EQ(a->bytes(), 15U);
  EXPECT_EQ(ledger.used(MemoryUse::kSequences), 15U);
  Reservation none;
  none.Add(std::move(*a));
  none.Add({});
  EXPECT_EQ(none.bytes(), 15U);
  none.Release();
  EXPECT_EQ(ledger.used(), 0U);
}

}  // namespace
}  // namespace mk::daemon
