// FP8 and FP4 rounding of rows against the tables of the formats.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/fp4_rows.h"
#include "engine/kernels/fp8_rows.h"
#include "engine/kernels/hadamard.h"
#include "engine/kernels/matmul.h"
#include "tests/reference/small_floats.h"
#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

using reference::BlockExponent;
using reference::E2m1Levels;
using reference::E4m3Levels;
using reference::NearestLevel;

// What rounding x to FP8 gives: rounded in blocks by the table.
std::vector<float> Fp8Twin(const std::vector<float>& x) {
  std::vector<double> y(x.begin(), x.end());
  double margin = 1;
  for (size_t i = 0; i < x.size(); i += kFp8Block) {
    // The least largest value is a float in the engine.
    reference::RoundBlock(E4m3Levels(), double{1e-4f}, y, i, std::min(i + kFp8Block, x.size()),
                          margin);
  }
  return {y.begin(), y.end()};
}

struct Fp8Row {
  explicit Fp8Row(std::vector<float> x)
      : values(std::move(x)), codes(values.size()), exponents(values.size() / kFp8Block + 1) {
    good = RoundToFp8(values, codes.data(), exponents.data());
  }
  std::vector<float> values;
  std::vector<uint8_t> codes;
  std::vector<int8_t> exponents;
  bool good;
};

// Rounds one value beside 448, which fixes the scale to 1.
float RoundE4m3(float x) {
  return Fp8Row({448.0f, x}).values[1];
}

TEST(Fp8Rows, EveryValueOfTheFormatStays) {
  for (size_t code = 0; code < 127; ++code) {
    for (const uint8_t sign : {0x00, 0x80}) {
      const auto level = static_cast<float>(E4m3Levels()[code]);
      const float value = sign != 0 ? -level : level;
      const Fp8Row row({448.0f, value});
      ASSERT_TRUE(row.good);
      EXPECT_EQ(Bits(row.values[1]), Bits(value)) << code;  // the sign of zero too
      EXPECT_EQ(row.codes[1], code | sign);
      EXPECT_EQ(row.exponents[0], 0);
    }
  }
}

TEST(Fp8Rows, TiesGoToTheEvenCode) {
  for (size_t code = 0; code + 1 < 127; ++code) {
    const double low = E4m3Levels()[code], high = E4m3Levels()[code + 1];
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(RoundE4m3(middle), static_cast<float>(code % 2 == 0 ? low : high)) << middle;
    EXPECT_EQ(RoundE4m3(std::nextafter(middle, 0.0f)), static_cast<float>(low));
    EXPECT_EQ(RoundE4m3(std::nextafter(middle, 500.0f)), static_cast<float>(high));
    EXPECT_EQ(RoundE4m3(-middle), static_cast<float>(code % 2 == 0 ? -low : -high));
  }
  EXPECT_EQ(RoundE4m3(0x1p-10f), 0.0f);
  EXPECT_EQ(RoundE4m3(432.0f), 448.0f);
  EXPECT_EQ(RoundE4m3(17.0f), 16.0f);
  EXPECT_EQ(RoundE4m3(19.0f), 20.0f);
}

TEST(Fp8Rows, TheScaleIsTheLeastPowerOfTwoThatClipsNothing) {
  for (int t = -24; t <= 100; ++t) {
    for (const float g :
         {1.0f, 1.5f, 1.75f, std::nextafter(1.75f, 2.0f), std::nextafter(2.0f, 1.0f)}) {
      const float largest = std::ldexp(g, t);
      const Fp8Row row({largest, 0.0f});
      const int expected = BlockExponent(E4m3Levels(), std::max(double{largest}, double{1e-4f}));
      EXPECT_EQ(row.exponents[0], expected) << largest;
    }
  }
  EXPECT_EQ(Fp8Row({0.0f}).exponents[0], -22);
  EXPECT_EQ(Fp8Row({1.0f}).exponents[0], -8);
  EXPECT_EQ(Fp8Row({1.75f}).exponents[0], -8);
  EXPECT_EQ(Fp8Row({449.0f}).exponents[0], 1);
}

TEST(Fp8Rows, AWorkedBlock) {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) x.push_back(0.37f * static_cast<float>(i - 20));
  const Fp8Row row(x);
  EXPECT_EQ(row.exponents[0], -4);
  EXPECT_EQ(row.values[0], -7.5f);
  EXPECT_EQ(row.values[19], -0.375f);
  EXPECT_EQ(row.values[30], 3.75f);
  EXPECT_EQ(row.values[47], 10.0f);
  EXPECT_EQ(row.values[62], 16.0f);
  EXPECT_EQ(row.values[63], 16.0f);
}

TEST(Fp8Rows, RowsOfAnyLengthEqualTheTable) {
  for (const size_t length : {1, 31, 63, 64, 65, 96, 128, 200, 448}) {
    Random random(static_cast<uint32_t>(length));
    std::vector<float> x = random.Normals(length);
    for (size_t i = 0; i < length; ++i) x[i] *= std::exp2(random.Uniform(-12, 4));
    EXPECT_EQ(Fp8Row(x).values, Fp8Twin(x)) << length;
  }
}

TEST(Fp8Rows, ValuesThatAreNotFiniteAreReported) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(100, 1.0f);
    x[70] = bad;
    EXPECT_FALSE(Fp8Row(x).good);
  }
}

TEST(CachedRows, AreKeptWithoutLoss) {
  for (const CachedRowShape shape :
       {CachedRowShape{64, 16, true}, CachedRowShape{88, 24, true}, CachedRowShape{7, 4, true},
        CachedRowShape{448, 64, true}, CachedRowShape{0, 8, true}, CachedRowShape{88, 24, false}}) {
    constexpr size_t kRows = 5;
    const size_t stride = shape.bytes() + 12;
    Random random(static_cast<uint32_t>(shape.width()));
    std::vector<std::vector<float>> rows;
    std::vector<std::byte> kept(kRows * stride);
    for (size_t r = 0; r < kRows; ++r) {
      std::vector<float> row = random.Normals(shape.width());
      for (float& value : row) value *= std::exp2(random.Uniform(-10, 10));
      const std::vector<float> before = row;
      ASSERT_TRUE(StoreCachedRow(shape, row, kept.data() + r * stride));
      const std::vector<float> first(before.begin(),
                                     before.begin() + static_cast<ptrdiff_t>(shape.first));
      std::vector<float> expected = shape.packed ? Fp8Twin(first) : first;
      expected.insert(expected.end(), before.begin() + static_cast<ptrdiff_t>(shape.first),
                      before.end());
      ExpectSameBits(row, expected);
      rows.push_back(row);
    }
    ForEachTarget([&] {
      std::vector<float> loaded(kRows * shape.width());
      LoadCachedRows(shape, kept.data(), stride, kRows, loaded.data());
      for (size_t r = 0; r < kRows; ++r) {
        ExpectSameBits(std::span(loaded).subspan(r * shape.width(), shape.width()), rows[r]);
      }
    });
  }
}

// A row of FP4, with the buffers that Q8Rows point to.
struct Fp4Row {
  explicit Fp4Row(std::vector<float> x)
      : values(std::move(x)),
        codes(values.size()),
        scales(values.size() / kFp4Block),
        offsets(scales.size()) {
    good = RoundToFp4(values, Rows());
  }
  Q8Rows Rows() {
    return {codes.data(), scales.data(), offsets.data(), scales.size(), scales.size()};
  }
  std::vector<float> values;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> offsets;
  bool good;
};

std::vector<float> Fp4Block(float first, float second) {
  std::vector<float> x(kFp4Block, 0.0f);
  x[0] = first;
  x[1] = second;
  return x;
}

// Rounds one value beside 6, which fixes the scale to 1.
float RoundE2m1(float x) {
  return Fp4Row(Fp4Block(6.0f, x)).values[1];
}

TEST(Fp4Rows, LevelsStayAndTiesGoToTheEvenCode) {
  for (size_t code = 0; code < 8; ++code) {
    const auto level = static_cast<float>(E2m1Levels()[code]);
    EXPECT_EQ(RoundE2m1(level), level);
    EXPECT_EQ(RoundE2m1(-level), -level);
    if (code == 7) break;
    const auto next = static_cast<float>(E2m1Levels()[code + 1]);
    const float middle = (level + next) / 2;
    EXPECT_EQ(RoundE2m1(middle), code % 2 == 0 ? level : next) << middle;
    EXPECT_EQ(RoundE2m1(-middle), code % 2 == 0 ? -level : -next);
    EXPECT_EQ(RoundE2m1(std::nextafter(middle, 0.0f)), level);
    EXPECT_EQ(RoundE2m1(std::nextafter(middle, 9.0f)), next);
  }
  EXPECT_EQ(RoundE2m1(5.0f), 4.0f);
  EXPECT_EQ(RoundE2m1(3.5f), 4.0f);
  EXPECT_EQ(RoundE2m1(2.5f), 2.0f);
}

TEST(Fp4Rows, TheScaleIsTheLeastPowerOfTwoThatClipsNothing) {
  for (int t = -100; t <= 100; ++t) {
    for (const float g : {1.0f, 1.5f, std::nextafter(1.5f, 2.0f), std::nextafter(2.0f, 1.0f)}) {
      const float largest = std::ldexp(g, t);
      const Fp4Row row(Fp4Block(largest, 0.0f));
      EXPECT_EQ(row.scales[0], std::exp2(BlockExponent(E2m1Levels(), largest) - 1)) << largest;
    }
  }
  const Fp4Row zeros(Fp4Block(0.0f, 0.0f));
  EXPECT_TRUE(zeros.good);
  EXPECT_EQ(zeros.values, std::vector<float>(kFp4Block, 0.0f));
}

TEST(Fp4Rows, RowsEqualTheTableAndTheirCodes) {
  for (const size_t length : {32, 64, 128, 512}) {
    Random random(static_cast<uint32_t>(length));
    const std::vector<float> x = random.Normals(length);
    Fp4Row row(x);
    std::vector<double> expected(x.begin(), x.end());
    double margin = 1;
    for (size_t i = 0; i < length; i += 32) {
      reference::RoundBlock(E2m1Levels(), 6 * 0x1p-126, expected, i, i + 32, margin);
    }
    for (size_t i = 0; i < length; ++i) {
      EXPECT_EQ(row.values[i], expected[i]);
      EXPECT_EQ(row.values[i], row.codes[i] * row.scales[i / 32]);
    }
    for (size_t g = 0; g < length / 32; ++g) {
      int sum = 0;
      for (size_t i = 0; i < 32; ++i) sum += row.codes[g * 32 + i];
      EXPECT_EQ(row.offsets[g], -128 * sum);
    }
  }
}

TEST(Fp4Rows, ValuesThatAreNotFiniteAreReported) {
  std::vector<float> x(64, 1.0f);
  x[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(Fp4Row(x).good);
  std::vector<std::byte> panels(PackedBytes(WeightKind::kQ8, 16, 64));
  EXPECT_FALSE(StoreFp4Row(x, 0, panels.data()));
}

// Queries times keys through the kernel of byte matrices: per block an exact integer.
TEST(Fp4Rows, ProductsAreExactInEveryBlock) {
  constexpr size_t kKeys = 37, kQueries = 5, kWidth = 128;
  Random random(1);
  alignas(64) static std::byte panels[PackedBytes(WeightKind::kQ8, 48, kWidth)];
  std::vector<std::vector<float>> keys;
  for (size_t k = 0; k < kKeys; ++k) {
    std::vector<float> key = random.Normals(kWidth);
    for (float& value : key) value *= std::exp2(random.Uniform(-6, 6));
    ASSERT_TRUE(StoreFp4Row(key, k, panels));
    keys.push_back(key);
  }
  std::vector<int8_t> codes(kQueries * kWidth);
  std::vector<float> scales(kQueries * kWidth / 32);
  std::vector<int32_t> offsets(scales.size());
  const Q8Rows rows{codes.data(), scales.data(), offsets.data(), kWidth / 32, kWidth / 32};
  std::vector<std::vector<float>> queries;
  for (size_t q = 0; q < kQueries; ++q) {
    std::vector<float> query = random.Normals(kWidth);
    ASSERT_TRUE(RoundToFp4(query, rows.From(q)));
    queries.push_back(query);
  }
  std::vector<float> expected;
  for (size_t q = 0; q < kQueries; ++q) {
    for (size_t k = 0; k < kKeys; ++k) {
      float sum = 0;
      for (size_t g = 0; g < kWidth; g += 32) {
        double block = 0;  // exact: integers below 2^13 times a power of two
        for (size_t i = g; i < g + 32; ++i) block += double{queries[q][i]} * double{keys[k][i]};
        sum = static_cast<float>(double{sum} + block);
      }
      expected.push_back(sum);
    }
  }
  ForEachTarget([&] {
    std::vector<float> products(kQueries * kKeys);
    MatMulJob job{{WeightKind::kQ8, panels, kKeys, kWidth},
                  nullptr,
                  0,
                  products.data(),
                  kKeys,
                  kQueries,
                  {rows, {}}};
    MatMul(job);
    ExpectSameBits(products, expected);
  });
}

TEST(Hadamard, IsSylvestersMatrixAndItsOwnInverse) {
  for (const size_t n : {1, 2, 4, 32, 64, 128, 4096}) {
    Random random(static_cast<uint32_t>(n));
    const std::vector<float> x = random.Normals(n);
    std::vector<float> y = x;
    Hadamard(y);
    const std::vector<double> expected = reference::HadamardProduct({x.begin(), x.end()});
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], expected[i], 2e-6) << n;
    Hadamard(y);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << n;
  }
}

}  // namespace
}  // namespace mk
