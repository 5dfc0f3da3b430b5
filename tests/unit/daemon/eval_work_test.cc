// What an evaluation keeps for a run that follows: what was written comes back, what was not does
// not.

#include "daemon/eval/eval_work.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mk::daemon {
namespace {

const std::vector<UnitResult> kResults = {
    {1.5, 3, 1, 2, 0, 0, 0}, {}, {1}, {-0.0, std::numeric_limits<double>::infinity(), 1e-300}};

TEST(EvalResults, ComeBackBitByBit) {
  const std::string bytes = EncodeResults(77, kResults);
  const auto back = DecodeResults(77, 4, bytes);
  ASSERT_EQ(back, kResults);
  EXPECT_TRUE(std::signbit(back[3][0]));
  EXPECT_EQ(DecodeResults(77, 400, bytes).size(), 4U);
}

TEST(EvalResults, OfOtherWorkAreNone) {
  const std::string bytes = EncodeResults(77, kResults);
  EXPECT_TRUE(DecodeResults(78, 4, bytes).empty());
  // More than there is to do.
  EXPECT_TRUE(DecodeResults(77, 3, bytes).empty());
  EXPECT_TRUE(DecodeResults(77, 4, "").empty());
  EXPECT_TRUE(DecodeResults(77, 4, bytes + "x").empty());
}

TEST(EvalResults, CutAnywhereOrBentAreNoneAndHarmNobody) {
  const std::string bytes = EncodeResults(77, kResults);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(DecodeResults(77, 4, bytes.substr(0, length)).empty()) << length;
  }
  // A count of numbers that would take all memory.
  std::string bent = bytes;
  for (size_t at = 24; at < 32; ++at) bent[at] = '\xff';
  EXPECT_TRUE(DecodeResults(77, 4, bent).empty());
}

TEST(EvalResults, OfAnotherFormCountForNothing) {
  for (const UnitResult& result : {UnitResult{}, UnitResult{1, 2}, UnitResult(50, 1e30)}) {
    EXPECT_EQ(ScoreOf(result).tokens, 0U);
    EXPECT_TRUE(PairOf(result).kl.empty());
    EXPECT_EQ(PairOf(result).sides[0].tokens, 0U);
  }
  // Two tokens, one layer, as PairOf reads it.
  const UnitResult pair = {2, 1, 7, 1, 3.5, 1, 2, 4.5, 0, 1, 0.75, 0.1, 0.2};
  const UnitPair read = PairOf(pair);
  EXPECT_EQ(read.sides[0].tokens, 2U);
  EXPECT_EQ(read.sides[0].nats, 3.5);
  EXPECT_EQ(read.sides[1].nats, 4.5);
  EXPECT_EQ(read.sides[1].top5, 1U);
  EXPECT_EQ(read.same_top, 1U);
  EXPECT_EQ(read.shared_top, 7U);
  ASSERT_EQ(read.overlap.size(), 1U);
  EXPECT_EQ(read.overlap[0], 0.75);
  ASSERT_EQ(read.kl.size(), 2U);
  EXPECT_EQ(read.kl[1], 0.2);
}

}  // namespace
}  // namespace mk::daemon
