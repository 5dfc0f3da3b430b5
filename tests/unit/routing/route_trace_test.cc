#include "routing/route_trace.h"

#include <gtest/gtest.h>

#include "tests/unit/routing/hex.h"

namespace mk::routing {
namespace {

RouteTrace Small() {
  RouteTrace trace;
  trace.head = {2, 4, 48, 13056, FingerprintBytes("000102030405060708090a0b0c0d0eff")};
  trace.records = {{0, 1, 5, kTracePrompt, 0}, {0x01020304, 3, 47, kTraceHit | kTraceShadow, 7}};
  return trace;
}

TEST(RouteTrace, FilesAreExact) {
  const std::string expected = FromHex(
      "4d4b545243303032 40000000 02000000 04000000 30000000 0033000000000000"
      "000102030405060708090a0b0c0d0eff 0200000000000000 0000000000000000"
      "00000000 0100 0500 08 00"
      "04030201 0300 2f00 05 07");
  EXPECT_EQ(SerializeTrace(Small()), expected);
  const auto again = ParseTrace(expected);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, Small());
}

TEST(RouteTrace, HostileFilesAreRefused) {
  const std::string good = SerializeTrace(Small());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseTrace(std::string_view(good).substr(0, size))) << size;
  }
  const auto refused = [&](size_t at, const std::string& hex) {
    std::string bytes = good;
    bytes.replace(at, FromHex(hex).size(), FromHex(hex));
    return !ParseTrace(bytes);
  };
  EXPECT_TRUE(refused(6, "33"));                 // magic
  EXPECT_TRUE(refused(8, "41"));                 // size of the head
  EXPECT_TRUE(refused(48, "ffffffffffffffff"));  // records
  EXPECT_TRUE(refused(48, "03"));
  EXPECT_TRUE(refused(16, "03"));  // layers that a record has not
  EXPECT_TRUE(refused(20, "2f"));  // experts
  EXPECT_FALSE(ParseTrace(good + "x"));
  EXPECT_FALSE(refused(12, "ff"));
}

TEST(RouteTrace, FingerprintsAreHexOrNothing) {
  EXPECT_EQ(FingerprintBytes("zz0102030405060708090a0b0c0d0eff"), (std::array<uint8_t, 16>{}));
  EXPECT_EQ(FingerprintBytes("00"), (std::array<uint8_t, 16>{}));
}

// A prompt of three tokens, then two tokens of an answer, over two layers of two picks.
TEST(RouteTrace, DemandsSweepThePromptOnceAndFollowTheAnswer) {
  const auto p = kTracePrompt;
  const std::vector<TraceRecord> records = {
      {0, 1, 5, p, 0}, {0, 1, 2, p, 0}, {0, 2, 7, p, 0}, {0, 2, 1, p, 0},  //
      {1, 1, 2, p, 0}, {1, 1, 9, p, 0}, {1, 2, 1, p, 0}, {1, 2, 7, p, 0},  //
      {2, 1, 0, p, 0}, {2, 1, 5, p, 0}, {2, 2, 3, p, 0}, {2, 2, 7, p, 0},  //
      {3, 1, 5, 0, 0}, {3, 1, 2, 0, 0}, {3, 2, 7, 0, 0}, {3, 2, 8, 0, 0},  //
      {4, 1, 5, 0, 0}, {4, 1, 0, 0, 0}, {4, 2, 7, 0, 0}, {4, 2, 8, 0, 0}};
  const std::vector<Pick> expected = {{1, 5}, {1, 2}, {1, 9}, {1, 0}, {2, 7}, {2, 1}, {2, 3},  //
                                      {1, 5}, {1, 2}, {2, 7}, {2, 8},                          //
                                      {1, 5}, {1, 0}, {2, 7}, {2, 8}};
  EXPECT_EQ(DemandsOf(records), expected);
  EXPECT_EQ(SerializeDemands(std::vector<Pick>{{1, 1}, {2, 258}}),
            FromHex("01000000 01000000 02000000 02010000"));
  EXPECT_TRUE(DemandsOf({}).empty());
}

}  // namespace
}  // namespace mk::routing
