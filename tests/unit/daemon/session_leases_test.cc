// Who writes into which session, and who waits.

#include "daemon/sessions/session_leases.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace mk::daemon {
namespace {

using Moves = std::vector<std::pair<uint64_t, uint64_t>>;

class Leases : public ::testing::Test {
 protected:
  std::vector<uint64_t> granted_;
  Moves moved_;
  std::optional<SessionLeases> leases_{
      std::in_place, SessionLeases::Calls{[this](uint64_t key) { granted_.push_back(key); },
                                          [this](uint64_t key, uint64_t before) {
                                            moved_.emplace_back(key, before);
                                          }}};
};

TEST_F(Leases, TheFirstHasItAndTheOthersFollowInOrder) {
  auto first = leases_->Ask("a", 1);
  auto second = leases_->Ask("a", 2);
  auto third = leases_->Ask("a", 3);
  EXPECT_EQ(granted_, std::vector<uint64_t>{1});
  EXPECT_EQ(leases_->Count("a"), 3U);
  EXPECT_EQ(leases_->Before(1), 0U);
  EXPECT_EQ(leases_->Before(3), 2U);
  first.reset();
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(moved_, (Moves{{3, 1}}));
  second.reset();
  third.reset();
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(leases_->Count("a"), 0U);
}

TEST_F(Leases, SessionsDoNotWaitForEachOther) {
  auto a = leases_->Ask("a", 1);
  auto b = leases_->Ask("b", 2);
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(leases_->Counts(), (std::map<std::string, uint64_t>{{"a", 1}, {"b", 1}}));
}

TEST_F(Leases, OneThatWaitsMayLeave) {
  auto first = leases_->Ask("a", 1);
  auto second = leases_->Ask("a", 2);
  auto third = leases_->Ask("a", 3);
  second.reset();
  EXPECT_EQ(granted_, std::vector<uint64_t>{1});
  EXPECT_EQ(moved_, (Moves{{3, 1}}));
  first.reset();
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 3}));
}

TEST_F(Leases, MayOutliveTheQueues) {
  auto first = leases_->Ask("a", 1);
  auto second = leases_->Ask("a", 2);
  leases_.reset();
  first.reset();
  second.reset();
  EXPECT_EQ(granted_, std::vector<uint64_t>{1});
}

}  // namespace
}  // namespace mk::daemon
