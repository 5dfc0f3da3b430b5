#include "engine/sampling/random.h"

#include <gtest/gtest.h>

namespace mk {
namespace {

using Words = std::array<uint32_t, 4>;

TEST(Random, PhiloxGivesThePublishedAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, XorShiftGivesTheRecordedSequences) {
  XorShift64Star seed42(42);
  EXPECT_EQ(seed42.Next(), 0x9eb31902fb0880bdull);
  EXPECT_EQ(seed42.Next(), 0x741191fccc3492f7ull);
  EXPECT_EQ(seed42.Next(), 0x1d2fa72b7757ad59ull);
  XorShift64Star seed0(0);
  EXPECT_EQ(seed0.Next(), 0x47e4ce4b896cdd1dull);
  EXPECT_EQ(seed0.Next(), 0xabcfa6a8e079651dull);
  EXPECT_EQ(seed0.Next(), 0xb9d10d8feb731f57ull);
  Random random(RandomProfile::kCompat1, 42);
  EXPECT_EQ(random.Uniform(0), 0.6199203140522815);
  EXPECT_EQ(random.Uniform(1), 0.4533931009466008);
  EXPECT_EQ(random.Uniform(2), static_cast<double>(0x1d2fa72b7757ad59 >> 11) / 0x1p53);
}

TEST(Random, AnIndexGivesTheSameNumberInAnyOrder) {
  for (const RandomProfile profile : {RandomProfile::kPhilox, RandomProfile::kCompat1}) {
    Random forward(profile, 7);
    std::array<double, 50> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = forward.Uniform(i);
    Random backward(profile, 7);
    for (size_t i = values.size(); i-- > 0;) EXPECT_EQ(backward.Uniform(i), values[i]);
    EXPECT_EQ(forward.Uniform(49), values[49]);
    EXPECT_EQ(forward.Uniform(3), values[3]);
  }
}

TEST(Random, UniformsFillTheUnitInterval) {
  Random random(RandomProfile::kPhilox, 1);
  std::array<int, 16> bins{};
  constexpr int kDraws = 160000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform(static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * 16)];
  }
  double chi2 = 0;  // 15 degrees of freedom: above 45 with probability 1e-4
  for (const int n : bins) chi2 += (n - 10000.0) * (n - 10000.0) / 10000.0;
  EXPECT_LT(chi2, 45.0);
  EXPECT_NE(Random(RandomProfile::kPhilox, 2).Uniform(0), random.Uniform(0));
}

TEST(Random, ProfilesHaveNames) {
  EXPECT_EQ(*ParseRandomProfile("philox"), RandomProfile::kPhilox);
  EXPECT_EQ(*ParseRandomProfile("compat-1"), RandomProfile::kCompat1);
  EXPECT_FALSE(ParseRandomProfile("mt19937"));
  EXPECT_EQ(RandomProfileName(RandomProfile::kCompat1), "compat-1");
}

}  // namespace
}  // namespace mk
