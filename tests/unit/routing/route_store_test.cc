#include "routing/route_store.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/routing/hex.h"

namespace mk::routing {
namespace {

// The worked example of the format.
const std::vector<Pick> kDemands = {{1, 5}, {1, 2}, {3, 9}, {1, 5}};
constexpr std::string_view kExample =
    "4d4b525453303031 01000000 04000000 0a000000 01000000 00000000"
    "0400000000000000 04000000 0a000000"
    "00000000"
    "02000000 02000000 01000000 05000000 02000000"
    "00000000"
    "01000000 09000000 01000000";

std::string Example() {
  RouteStore store;
  store.Append(SessionOf(kDemands));
  return store.Serialize();
}

TEST(RouteStore, TheWorkedExampleIsExact) {
  ASSERT_EQ(FromHex(kExample).size(), 84u);
  EXPECT_EQ(Example(), FromHex(kExample));
  const auto store = RouteStore::Parse(FromHex(kExample));
  ASSERT_TRUE(store);
  ASSERT_EQ(store->sessions().size(), 1u);
  EXPECT_EQ(store->sessions()[0], SessionOf(kDemands));
  EXPECT_EQ(store->Serialize(), FromHex(kExample));
}

TEST(RouteStore, HoldsTheLastThirtyTwo) {
  RouteStore store;
  for (uint32_t i = 0; i < 40; ++i) store.Append(SessionOf(std::vector<Pick>{{39 - i, i}}));
  ASSERT_EQ(store.sessions().size(), 32u);
  EXPECT_EQ(store.sessions()[0].experts, 9u);
  // The largest ever seen stay, though their sessions are gone.
  EXPECT_EQ(store.layers(), 40u);
  EXPECT_EQ(store.experts(), 40u);
  const auto again = RouteStore::Parse(store.Serialize());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->sessions(), store.sessions());
  EXPECT_EQ(again->layers(), 40u);
}

TEST(RouteStore, ARecordThatIsCutOffEndsTheList) {
  RouteStore two;
  two.Append(SessionOf(kDemands));
  two.Append(SessionOf(std::vector<Pick>{{0, 1}, {2, 3}}));
  const std::string bytes = two.Serialize();
  for (size_t size = 28; size < bytes.size(); ++size) {
    const auto store = RouteStore::Parse(std::string_view(bytes).substr(0, size));
    ASSERT_TRUE(store) << size;
    EXPECT_EQ(store->sessions().size(), size < 84 ? 0u : 1u) << size;
  }
  for (size_t size = 0; size < 28; ++size) {
    EXPECT_FALSE(RouteStore::Parse(std::string_view(bytes).substr(0, size))) << size;
  }
}

TEST(RouteStore, OtherFilesAreRefused) {
  std::string bytes = Example();
  bytes[8] = 2;
  EXPECT_FALSE(RouteStore::Parse(bytes));
  bytes = Example();
  bytes[7] = '2';
  EXPECT_FALSE(RouteStore::Parse(bytes));
  bytes = Example();
  bytes.replace(12, 4, FromHex("ffffffff"));
  EXPECT_FALSE(RouteStore::Parse(bytes));
}

// Claims that the file is too short for, experts out of order or beyond the record's, counts that
// do not add up: none is believed, nothing is allocated for it.
TEST(RouteStore, HostileRecordsAreNotBelieved) {
  const auto sessions = [](size_t at, const std::string& hex) {
    std::string bytes = Example();
    bytes.replace(at, FromHex(hex).size(), FromHex(hex));
    const auto store = RouteStore::Parse(bytes);
    return store ? store->sessions().size() : 99;
  };
  EXPECT_EQ(sessions(24, "ffffffff"), 1u);  // the reserved word is not looked at
  EXPECT_EQ(sessions(20, "ffffffff"), 1u);  // more sessions than there are
  EXPECT_EQ(sessions(28, "05"), 0u);        // requests
  EXPECT_EQ(sessions(36, "ffffffff"), 0u);  // layers
  EXPECT_EQ(sessions(36, "00100000"), 0u);
  EXPECT_EQ(sessions(40, "ffffffff"), 0u);  // experts
  EXPECT_EQ(sessions(40, "05000000"), 0u);
  EXPECT_EQ(sessions(44, "ffffffff"), 0u);  // pairs
  EXPECT_EQ(sessions(48, "0a000000"), 0u);
  EXPECT_EQ(sessions(52, "05000000"), 0u);  // twice the same expert
  EXPECT_EQ(sessions(56, "00000000"), 0u);  // a count of none
}

TEST(RouteStore, RandomBytesAreHarmless) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = Example();
    for (int i = 0; i < 3; ++i) {
      bytes[8 + random() % (bytes.size() - 8)] = static_cast<char>(random());
    }
    const auto store = RouteStore::Parse(bytes);
    if (store) {
      EXPECT_LE(store->sessions().size(), 32u);
    }
  }
}

}  // namespace
}  // namespace mk::routing
