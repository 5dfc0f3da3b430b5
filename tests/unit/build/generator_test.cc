#include "engine/build/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "engine/format/mxfp4.h"

namespace mk {
namespace {

TEST(Generator, HashesMatchRecordedOnes) {
  EXPECT_EQ(Fnv1a64("embed_tokens.weight"), 0xbec8601aeee6ec19u);
  EXPECT_EQ(MixBits(0x9E3779B97F4A7C15u), 0xe220a8397b1dcdafu);
  const HashStream stream(0, "embed_tokens.weight");
  EXPECT_EQ(stream.key(), 0x8532c888b2fb4c34u);
  EXPECT_EQ(stream.At(0), 0x22081a5bc66b4272u);
  EXPECT_EQ(stream.At(1), 0x67357e9496f02005u);
  EXPECT_EQ(stream.At(2), 0x9e7bd22501ed4b2cu);
  EXPECT_EQ(BellSum(stream.At(0)), -47806);
  EXPECT_EQ(BellSum(stream.At(1)), -25408);
  EXPECT_EQ(BellSum(stream.At(2)), -16965);
  EXPECT_EQ(BellSum(0), -131070);
  EXPECT_EQ(BellSum(~uint64_t{0}), 131070);
}

TEST(Generator, AnyPieceEqualsThatPartOfTheWhole) {
  const HashStream stream(7, "layers.3.self_attn.q_proj.weight");
  std::vector<float> whole(1000);
  FillNormal(stream, 0, 0.25f, 1.5, whole);
  for (const size_t first : {0, 1, 17, 999}) {
    std::vector<float> piece(whole.size() - first);
    FillNormal(stream, first, 0.25f, 1.5, piece);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<long>(first)));
  }
}

TEST(Generator, NormalHasItsMoments) {
  constexpr size_t kCount = 2'000'000;
  std::vector<float> values(kCount);
  for (const double mean : {0.0, -0.5, 1.0}) {
    const double deviation = 0.2;
    FillNormal(HashStream(0, "moments"), 0, static_cast<float>(mean), deviation, values);
    double sum = 0;
    double squares = 0;
    for (const float v : values) {
      sum += v;
      squares += (v - mean) * (v - mean);
    }
    EXPECT_NEAR(sum / kCount, mean, 4 * deviation / std::sqrt(double{kCount}));
    EXPECT_NEAR(squares / kCount, deviation * deviation, 0.01 * deviation * deviation);
  }
}

TEST(Generator, GridRunsFromEndToEnd) {
  std::vector<float> grid(32);
  FillGrid(0, 32, 0, 2.772588722239781, grid);
  EXPECT_EQ(grid[0], 0.0f);
  EXPECT_EQ(grid[1], 0.089438349f);
  EXPECT_EQ(grid[31], 2.772588722239781f);
  std::vector<float> one(1);
  FillGrid(0, 1, 0.5, 2, one);
  EXPECT_EQ(one[0], 0.5f);
}

// gamma of an expert, from the definition.
double Gamma(uint64_t seed, const std::string& prefix) {
  const uint64_t draw = HashStream(seed, prefix + "gain").At(0) >> 11;
  return 0.75 + 0.5 * static_cast<double>(draw) / std::ldexp(1.0, 53);
}

TEST(Generator, CodedExpertHasItsMeanSquare) {
  constexpr size_t kRows = 4096;
  constexpr size_t kCols = 512;
  std::vector<std::byte> blob(kRows * kCols / 2 + kRows * kCols / 32);
  std::vector<float> values(kRows * kCols);
  for (const double gain : {0.01, 0.7, 1.0, 40.0}) {
    const std::string prefix = "layers.1.block_sparse_moe.experts.5.";
    FillCodedExpert(3, prefix + "w2", kRows, kCols, gain, blob);
    ASSERT_TRUE(DecodeMxfp4(blob, kRows, kCols, values).has_value());
    double sum = 0;
    double squares = 0;
    for (const float v : values) {
      sum += v;
      squares += double{v} * v;
    }
    const double deviation = gain * Gamma(3, prefix);
    const double expected = deviation * deviation / kCols;
    const double count = kRows * kCols;
    EXPECT_NEAR(squares / count, expected, 0.01 * expected) << "gain " << gain;
    EXPECT_NEAR(sum / count, 0, 4 * std::sqrt(expected / count));
  }
}

TEST(Generator, MatricesOfAnExpertShareTheirGain) {
  constexpr size_t kSize = 512;
  std::vector<std::byte> blob(kSize * kSize / 2 + kSize * kSize / 32);
  std::vector<float> values(kSize * kSize);
  std::vector<double> rms;
  for (const char* name :
       {"layers.1.block_sparse_moe.experts.9.w1", "layers.1.block_sparse_moe.experts.9.w2",
        "layers.1.block_sparse_moe.experts.9.w3"}) {
    FillCodedExpert(0, name, kSize, kSize, 1.0, blob);
    ASSERT_TRUE(DecodeMxfp4(blob, kSize, kSize, values).has_value());
    double squares = 0;
    for (const float v : values) squares += double{v} * v;
    rms.push_back(std::sqrt(squares));
  }
  EXPECT_NEAR(rms[1] / rms[0], 1.0, 0.02);
  EXPECT_NEAR(rms[2] / rms[0], 1.0, 0.02);
}

}  // namespace
}  // namespace mk
