#include "routing/count_sketch.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/unit/routing/hex.h"

namespace mk::routing {
namespace {

Pick RandomPick(std::mt19937& random, uint32_t layers, uint32_t experts) {
  const auto layer = static_cast<uint32_t>(random() % layers);
  return {layer, static_cast<uint32_t>(random() % experts)};
}

TEST(CountSketch, ColumnsAreThoseOfTheFormat) {
  const std::map<Pick, std::array<size_t, 4>> vectors = {
      {{0, 0}, {3503, 1524, 1359, 492}},
      {{3, 42}, {2377, 1058, 1039, 3125}},
      {{92, 895}, {2017, 2941, 1240, 1535}},
  };
  for (const auto& [pick, columns] : vectors) {
    for (size_t row = 0; row < 4; ++row) {
      EXPECT_EQ(CountSketch::ColumnOf(pick, row), columns[row]) << pick.layer << " " << row;
    }
  }
}

// Every byte of a file with one pick: the head, and one in each row.
TEST(CountSketch, FilesAreExact) {
  CountSketch sketch;
  sketch.Add({3, 42}, 0x01020304);
  const std::string bytes = sketch.Serialize();
  ASSERT_EQ(bytes.size(), 65572u);
  std::string expected =
      FromHex("4d4b434d53303031 01000000 04000000 00100000 04000000 2b000000 0403020100000000");
  expected.resize(65572, '\0');
  const size_t columns[] = {2377, 1058, 1039, 3125};
  for (size_t row = 0; row < 4; ++row) {
    expected.replace(36 + 4 * (row * 4096 + columns[row]), 4, FromHex("04030201"));
  }
  EXPECT_EQ(bytes, expected);
  const auto again = CountSketch::Parse(bytes);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->Serialize(), bytes);
  EXPECT_EQ(again->Estimate({3, 42}), 0x01020304u);
}

TEST(CountSketch, AnEmptyOneStoresOnes) {
  const std::string bytes = CountSketch().Serialize();
  EXPECT_EQ(bytes.substr(20, 8), FromHex("01000000 01000000"));
  EXPECT_TRUE(Ranked(CountSketch()).empty());
  EXPECT_TRUE(CoverageOf({}).empty());
}

TEST(CountSketch, EstimatesAreNeverBelowTheCounts) {
  std::mt19937 random(1);
  std::map<Pick, uint32_t> counts;
  CountSketch sketch;
  for (int i = 0; i < 40'000; ++i) {
    const Pick pick = RandomPick(random, 93, 896);
    ++counts[pick];
    sketch.Add(pick);
  }
  EXPECT_EQ(sketch.total(), 40'000u);
  for (const auto& [pick, count] : counts) EXPECT_GE(sketch.Estimate(pick), count);
}

TEST(CountSketch, CountersSaturate) {
  CountSketch sketch;
  sketch.Add({1, 1}, UINT64_MAX);
  sketch.Add({1, 1}, 5);
  EXPECT_EQ(sketch.Estimate({1, 1}), UINT32_MAX);
  EXPECT_EQ(sketch.total(), UINT64_MAX);
  CountSketch other;
  other.Add({1, 1}, 7);
  other.Add({2, 9}, 7);
  sketch.Merge(other);
  EXPECT_EQ(sketch.Estimate({1, 1}), UINT32_MAX);
  EXPECT_EQ(sketch.Estimate({2, 9}), 7u);
  EXPECT_EQ(sketch.total(), UINT64_MAX);
  EXPECT_EQ(sketch.layers(), 3u);
  EXPECT_EQ(sketch.experts(), 10u);
}

TEST(CountSketch, MergingIsCountingTogether) {
  CountSketch a;
  CountSketch b;
  CountSketch both;
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    const Pick pick = RandomPick(random, 8, 48);
    (i % 3 == 0 ? a : b).Add(pick);
    both.Add(pick);
  }
  a.Merge(b);
  EXPECT_EQ(a.Serialize(), both.Serialize());
}

TEST(CountSketch, HostileFilesAreRefused) {
  const std::string good = CountSketch().Serialize();
  const auto refused = [](const std::string& bytes, const std::string& what) {
    const auto sketch = CountSketch::Parse(bytes);
    ASSERT_FALSE(sketch) << what;
    EXPECT_EQ(sketch.error().code, protocol::ErrorCode::kBadRequest);
    EXPECT_NE(sketch.error().message.find(what), std::string::npos) << sketch.error().message;
  };
  const auto with = [&](size_t at, const std::string& hex) {
    std::string bytes = good;
    return bytes.replace(at, FromHex(hex).size(), FromHex(hex));
  };
  refused("", "MKCMS001");
  refused("MKCMS00", "MKCMS001");
  refused(good.substr(0, 8), "8 bytes");
  refused(good.substr(0, good.size() - 1), "65571 bytes");
  refused(good + "x", "65573 bytes");
  refused(with(7, "32"), "MKCMS001");
  refused(with(8, "02000000"), "version 2");
  refused(with(12, "05000000"), "5 rows");
  refused(with(16, "00200000"), "8192 counters");
  refused(with(20, "00000000"), "0 layers");
  refused(with(20, "ffffffff"), "4294967295 layers");
  refused(with(24, "ffffffff"), "4294967295 experts");
  refused(with(24, "00000000"), "0 experts");
}

TEST(CountSketch, RankingGoesByCountThenLayerThenExpert) {
  CountSketch sketch;
  sketch.Add({2, 1}, 5);
  sketch.Add({0, 3}, 5);
  sketch.Add({0, 1}, 5);
  sketch.Add({1, 0}, 9);
  std::vector<std::array<uint32_t, 3>> rows;
  for (const Estimated& one : Ranked(sketch)) {
    rows.push_back({one.pick.layer, one.pick.expert, one.count});
  }
  EXPECT_EQ(rows,
            (std::vector<std::array<uint32_t, 3>>{{1, 0, 9}, {0, 1, 5}, {0, 3, 5}, {2, 1, 5}}));
}

// By hand: 7 pairs of 40, 20, 10, 10, 10, 5, 5.
TEST(CountSketch, CoverageIsThatOfTheFirstPairs) {
  std::vector<Estimated> ranked;
  for (const uint32_t count : {40, 20, 10, 10, 10, 5, 5}) ranked.push_back({{}, count});
  std::vector<std::pair<uint32_t, size_t>> pairs;
  std::vector<double> shares;
  for (const Coverage& one : CoverageOf(ranked)) {
    pairs.emplace_back(one.percent, one.pairs);
    shares.push_back(one.share);
  }
  // 100 * 1 / 7 = 14, * 2 = 28, * 4 = 57.
  EXPECT_EQ(pairs, (std::vector<std::pair<uint32_t, size_t>>{
                       {1, 1}, {5, 1}, {10, 1}, {25, 2}, {50, 4}, {100, 7}}));
  EXPECT_EQ(shares, (std::vector<double>{0.4, 0.4, 0.4, 0.6, 0.8, 1.0}));
}

}  // namespace
}  // namespace mk::routing
