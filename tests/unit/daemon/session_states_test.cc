// States of sessions in memory: what they cost, and who has to go.

#include "daemon/sessions/session_states.h"

#include <gtest/gtest.h>

#include <map>

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

// A sequence that only has a size.
class Sized : public Sequence {
 public:
  explicit Sized(uint64_t bytes) : own(bytes) {}
  size_t length() const override { return 1; }
  size_t state_bytes() const override { return own; }
  Result<std::unique_ptr<Sequence>> Clone() const override {
    return Fail(ErrorCode::kUnsupported, "not in this test");
  }
  uint64_t own;
};

class States : public ::testing::Test {
 protected:
  // Bytes of the state are `own`; the tokens are none, so that the sums are plain.
  std::shared_ptr<Sized> Put(const std::string& id, uint64_t own) {
    auto sequence = std::make_shared<Sized>(own);
    shelf_->Put(id, RunState{sequence, {}, {}, {}});
    return sequence;
  }
  bool Has(const std::string& id) { return shelf_->Find(id) != nullptr; }

  Ledger ledger_{1000};
  SessionStates states_{ledger_, 300};
  std::shared_ptr<SessionShelf> shelf_ = states_.NewShelf();
};

TEST_F(States, AreFoundByTheirIdsAndCharged) {
  Put("a", 100);
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_EQ(ledger_.used(MemoryUse::kSessions), 100U);
  EXPECT_EQ(ledger_.available(), 1000U);  // it gives way
  Put("a", 100);                          // a fork's
  EXPECT_EQ(states_.counts().states, 1U);
  EXPECT_EQ(states_.counts().bytes, 100U);
  shelf_.reset();
  EXPECT_EQ(ledger_.used(), 0U);
}

TEST_F(States, TheOneUsedLongestAgoGoesFirst) {
  Put("a", 100);
  Put("b", 100);
  Put("c", 100);
  EXPECT_TRUE(Has("a"));
  Put("d", 100);
  EXPECT_TRUE(Has("a"));
  EXPECT_FALSE(Has("b"));
  EXPECT_TRUE(Has("c"));
  Put("huge", 301);
  EXPECT_FALSE(Has("huge"));
  EXPECT_TRUE(Has("c"));
}

TEST_F(States, GiveWayToThoseWhoNeedTheRoom) {
  ledger_.SetReclaim([this](uint64_t bytes) { return states_.Reclaim(bytes); });
  Put("a", 100);
  Put("b", 100);
  auto sequence = ledger_.Reserve(MemoryUse::kSequences, 850);
  ASSERT_TRUE(sequence);
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Has("b"));
  Put("c", 100);  // there is room for one of them only
  EXPECT_FALSE(Has("b"));
  EXPECT_TRUE(Has("c"));
  EXPECT_FALSE(ledger_.Reserve(MemoryUse::kSequences, 151));
  EXPECT_TRUE(Has("c"));  // not for what would not fit anyway
}

TEST_F(States, RoomIsMadeBeforeAStateIsRead) {
  Put("a", 200);
  bool roomy = false;
  const auto read = [&]() -> Result<RunState> {
    roomy = ledger_.used(MemoryUse::kSessions) == 150 && !Has("a");
    return RunState{std::make_shared<Sized>(120), {}, {}, {}};
  };
  auto state = shelf_->Read("b", 150, read);
  ASSERT_TRUE(state);
  EXPECT_TRUE(roomy);
  EXPECT_EQ(ledger_.used(MemoryUse::kSessions), 120U);
  EXPECT_EQ(shelf_->Find("b"), *state);
  // Booked as long as somebody has it, whoever else needs the room.
  EXPECT_EQ(states_.Reclaim(1), 120U);
  EXPECT_EQ(ledger_.used(), 120U);
  // It gives way to nobody any more: nobody is to ask for it again and again.
  EXPECT_EQ(ledger_.used(MemoryUse::kSequences), 120U);
  state->reset();
  EXPECT_EQ(ledger_.used(), 0U);
  // Beyond the limit it is a run's alone, and beyond the budget nobody's.
  auto large = shelf_->Read("c", 400, read);
  ASSERT_TRUE(large);
  EXPECT_EQ(ledger_.used(MemoryUse::kSequences), 120U);
  EXPECT_FALSE(Has("c"));
  roomy = true;
  EXPECT_EQ(shelf_->Read("d", 1001, read).error().code, ErrorCode::kOutOfMemory);
  EXPECT_TRUE(roomy);  // nothing was read
  const auto fails = [] { return Result<RunState>(Fail(ErrorCode::kCorrupt, "torn")); };
  EXPECT_EQ(shelf_->Read("e", 100, fails).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(ledger_.used(), 120U);
}

TEST_F(States, WhatNobodyUsesGoesByItself) {
  Put("a", 100);
  states_.DropUnused(std::chrono::steady_clock::now() - 1h);
  EXPECT_TRUE(Has("a"));
  states_.DropUnused(std::chrono::steady_clock::now() + 1s);
  EXPECT_FALSE(Has("a"));
  Put("b", 100);
  states_.SetLimit(50);
  EXPECT_FALSE(Has("b"));
  EXPECT_EQ(ledger_.used(), 0U);
}

}  // namespace
}  // namespace mk::daemon
