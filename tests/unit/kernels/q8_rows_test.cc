#include "engine/kernels/q8_rows.h"

#include <gtest/gtest.h>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

struct Quantized {
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<int32_t> offsets;
  size_t groups;

  Quantized(const std::vector<float>& x, size_t rows, size_t cols)
      : values(rows * Q8Groups(cols) * 32, 77),
        scales(rows * Q8Groups(cols), -1.0f),
        offsets(rows * Q8Groups(cols), -1),
        groups(Q8Groups(cols)) {
    QuantizeRows(x.data(), cols, cols, 0, rows,
                 Q8Rows{values.data(), scales.data(), offsets.data(), groups, groups});
  }
};

TEST(Q8Rows, ValuesAreWithinHalfAStepAndSumsAreTheirs) {
  Random random(1);
  const size_t rows = 3, cols = 301;
  std::vector<float> x = random.Normals(rows * cols);
  for (size_t c = 32; c < 64; ++c) x[c] *= 1e20f;
  for (size_t c = 64; c < 96; ++c) x[c] *= 1e-20f;
  ForEachTarget([&] {
    const Quantized q(x, rows, cols);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t g = 0; g < q.groups; ++g) {
        const float scale = q.scales[r * q.groups + g];
        int sum = 0;
        int largest = 0;
        for (size_t j = 0; j < 32; ++j) {
          const int value = q.values[(r * q.groups + g) * 32 + j];
          const size_t c = g * 32 + j;
          const double exact = c < cols ? double{x[r * cols + c]} : 0.0;
          EXPECT_LE(std::fabs(value * double{scale} - exact), 0.5001 * double{scale});
          sum += value;
          largest = std::max(largest, std::abs(value));
        }
        EXPECT_EQ(-128 * sum, q.offsets[r * q.groups + g]);
        EXPECT_EQ(largest, 127);
      }
    }
  });
}

TEST(Q8Rows, TiesGoToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;  // the scale is 1
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  x[4] = -3.5f;
  ForEachTarget([&] {
    const Quantized q(x, 1, 32);
    EXPECT_EQ(q.scales[0], 1.0f);
    EXPECT_EQ(q.values[1], 0);
    EXPECT_EQ(q.values[2], 2);
    EXPECT_EQ(q.values[3], -2);
    EXPECT_EQ(q.values[4], -4);
  });
}

TEST(Q8Rows, ZerosAndTinyValuesCountAsZero) {
  std::vector<float> x(64, 0.0f);
  for (size_t c = 32; c < 64; ++c) x[c] = 1e-38f;
  ForEachTarget([&] {
    const Quantized q(x, 1, 64);
    for (const int8_t value : q.values) EXPECT_EQ(value, 0);
    for (const float scale : q.scales) EXPECT_EQ(scale, 0.0f);
  });
}

TEST(Q8Rows, NonFiniteValuesMakeTheScaleNan) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (size_t at : {0u, 17u, 31u, 40u}) {
      std::vector<float> x(45, 1.0f);
      x[at] = bad;
      ForEachTarget([&] {
        const Quantized q(x, 1, 45);
        EXPECT_TRUE(std::isnan(q.scales[at / 32]));
        EXPECT_FALSE(std::isnan(q.scales[1 - at / 32]));
      });
    }
  }
}

}  // namespace
}  // namespace mk
