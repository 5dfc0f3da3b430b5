#include "engine/kernels/rotary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

TEST(Rotary, FrequenciesOfTheTwoKindsOfLayer) {
  const std::vector<float> plain = RotaryFrequencies(64, 10000);
  ASSERT_EQ(plain.size(), 32u);
  EXPECT_EQ(plain[0], 1.0f);
  EXPECT_EQ(plain[1], 0.749894202f);
  const std::vector<float> slow = RotaryFrequencies(64, 160000);
  EXPECT_EQ(slow[1], 0.687656045f);
  const std::vector<float> yarn = RotaryFrequencies(64, 160000, YarnScaling{});
  for (size_t i = 0; i <= 15; ++i) EXPECT_EQ(yarn[i], slow[i]);
  EXPECT_EQ(yarn[15], 0.00363553851f);
  EXPECT_EQ(yarn[16], 0.00226562493f);
  EXPECT_EQ(yarn[20], 0.000296977785f);
  EXPECT_EQ(yarn[24], 1.95312532e-05f);
  EXPECT_EQ(yarn[25], 5.37231244e-06f);
  EXPECT_EQ(yarn[31], 5.6805294e-07f);
  for (size_t i = 25; i < 32; ++i) EXPECT_EQ(yarn[i], slow[i] / 16);
}

TEST(Rotary, NarrowerWidthsStretchFromOtherPairsOn) {
  const auto stretched = [](size_t width) {
    const std::vector<float> slow = RotaryFrequencies(width, 160000);
    const std::vector<float> yarn = RotaryFrequencies(width, 160000, YarnScaling{});
    size_t first = 0, last = 0;
    for (size_t i = 0; i < slow.size(); ++i) {
      if (yarn[i] == slow[i]) first = i;
      if (last == 0 && yarn[i] == slow[i] / 16) last = i;
    }
    return std::pair(first, last);
  };
  EXPECT_EQ(stretched(64), std::pair(size_t{15}, size_t{25}));
  EXPECT_EQ(stretched(32), std::pair(size_t{7}, size_t{13}));
  EXPECT_EQ(stretched(16), std::pair(size_t{3}, size_t{7}));
}

TEST(Rotary, AnglesAreOneProductOfFloats) {
  for (const bool scaled : {false, true}) {
    const std::vector<float> f =
        scaled ? RotaryFrequencies(64, 160000, YarnScaling{}) : RotaryFrequencies(64, 10000);
    for (const size_t position : {0, 1, 4095, 65535, 1000003}) {
      std::vector<float> angles(64);
      RotaryAngles(f, position, angles);
      for (size_t i = 0; i < 32; ++i) {
        const float t = static_cast<float>(position) * f[i];
        EXPECT_EQ(angles[i], static_cast<float>(std::cos(double{t})));
        EXPECT_EQ(angles[32 + i], static_cast<float>(std::sin(double{t})));
      }
    }
  }
  std::vector<float> angles(64);
  RotaryAngles(RotaryFrequencies(64, 10000), 4095, angles);
  EXPECT_FLOAT_EQ(angles[16], -0.99403310f);
  EXPECT_FLOAT_EQ(angles[48], -0.10907879f);
  RotaryAngles(RotaryFrequencies(64, 160000, YarnScaling{}), 4095, angles);
  EXPECT_FLOAT_EQ(angles[16], -0.98920846f);
  EXPECT_FLOAT_EQ(angles[48], 0.14651483f);
}

TEST(Rotary, NeighboursTurnTogetherAndBack) {
  Random random(1);
  const std::vector<float> f = RotaryFrequencies(16, 10000);
  std::vector<float> angles(16);
  RotaryAngles(f, 77, angles);
  const std::vector<float> x = random.Normals(16);
  std::vector<float> y = x;
  Rotate(angles, y);
  for (size_t i = 0; i < 8; ++i) {
    const double t = double{77.0f * f[i]};
    EXPECT_NEAR(y[2 * i], x[2 * i] * std::cos(t) - x[2 * i + 1] * std::sin(t), 1e-6);
    EXPECT_NEAR(y[2 * i + 1], x[2 * i] * std::sin(t) + x[2 * i + 1] * std::cos(t), 1e-6);
  }
  RotateBack(angles, y);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
}

}  // namespace
}  // namespace mk
