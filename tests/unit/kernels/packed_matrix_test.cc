// PackRows: where every weight goes and which bits it has, against the definition.

#include "engine/kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/unit/kernels/kernel_test.h"

namespace mk {
namespace {

constexpr WeightKind kKinds[] = {WeightKind::kF32, WeightKind::kBf16, WeightKind::kQ8};

template <typename T>
T At(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Weight [row][col] of a panel form that holds one element per weight.
template <typename T>
T Element(std::span<const std::byte> panels, size_t panel_cols, size_t row, size_t col) {
  return At<T>(panels, ((row / 16 * panel_cols + col) * 16 + row % 16) * sizeof(T));
}

// bfloat16 by arithmetic: the float that has eight bits of mantissa, fewer where it is subnormal;
// ties to even.
float EightBits(float v) {
  int exponent;
  std::frexp(v, &exponent);
  const int last = std::max(exponent - 8, -133);
  return std::ldexp(std::nearbyint(std::ldexp(v, -last)), last);
}

void ExpectPackedQ8(std::span<const std::byte> panels, size_t row, const float* in, size_t cols) {
  const size_t groups = (cols + 31) / 32;
  for (size_t g = 0; g < groups; ++g) {
    const size_t group = (row / 16 * groups + g) * 576;
    float largest = 0;
    for (size_t c = g * 32; c < std::min(cols, g * 32 + 32); ++c) {
      largest = std::max(largest, std::fabs(in[c]));
    }
    const float scale = largest / 127.0f;
    ASSERT_EQ(Bits(At<float>(panels, group + row % 16 * 4)), Bits(scale)) << row << ", " << g;
    for (size_t j = 0; j < 32; ++j) {
      const size_t c = g * 32 + j;
      const int q =
          c < cols && std::isnormal(scale) ? static_cast<int>(std::nearbyint(in[c] / scale)) : 0;
      ASSERT_EQ(At<uint8_t>(panels, group + 64 + j / 4 * 64 + row % 16 * 4 + j % 4), q + 128)
          << row << ", " << c;
    }
  }
}

void ExpectPacked(WeightKind kind, std::span<const std::byte> panels, size_t row, const float* in,
                  size_t cols) {
  if (kind == WeightKind::kQ8) return ExpectPackedQ8(panels, row, in, cols);
  for (size_t c = 0; c < cols; ++c) {
    if (kind == WeightKind::kF32) {
      ASSERT_EQ(Bits(Element<float>(panels, cols, row, c)), Bits(in[c])) << row << ", " << c;
    } else {
      const auto value = Element<uint16_t>(panels, (cols + 1) / 2 * 2, row, c);
      ASSERT_EQ(uint32_t{value} << 16, Bits(EightBits(in[c]))) << row << ", " << c;
    }
  }
}

// Weights of many sizes, with zeros, ties of bfloat16 and a group of nothing but tiny values.
std::vector<float> Weights(size_t count, Random& random) {
  std::vector<float> w(count);
  for (size_t i = 0; i < count; ++i) {
    w[i] = random.Normal() * std::ldexp(1.0f, random.Byte() % 40 - 20);
    if (random.Byte() < 6) w[i] = 0;
    if (random.Byte() < 20) w[i] = std::ldexp(static_cast<float>(random.Byte() * 2 + 513), -3);
    if (i >= 64 && i < 96) w[i] = random.Uniform(-1e-37f, 1e-37f);
  }
  return w;
}

TEST(PackRows, PutsEveryWeightWhereItBelongs) {
  ForEachTarget([&] {
    Random random(1);
    for (const WeightKind kind : kKinds) {
      for (const size_t count : {1u, 3u, 4u, 16u, 21u, 70u}) {
        for (const size_t cols : {1u, 3u, 16u, 17u, 32u, 45u, 200u}) {
          for (const size_t first : {0u, 1u, 4u, 14u}) {
            SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + ": " + std::to_string(count) +
                         " x " + std::to_string(cols) + " from " + std::to_string(first));
            const std::vector<float> w = Weights(count * cols, random);
            std::vector<std::byte> panels(PackedBytes(kind, first + count, cols));
            PackRows(kind, w, first, count, cols, panels);
            for (size_t i = 0; i < count; ++i) {
              ExpectPacked(kind, panels, first + i, w.data() + i * cols, cols);
            }
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

// Rows of others are as they were, whatever instructions store the new ones.
TEST(PackRows, LeavesOtherRowsAlone) {
  ForEachTarget([&] {
    Random random(2);
    for (const WeightKind kind : kKinds) {
      const size_t cols = 37;
      const std::vector<float> all = random.Normals(32 * cols);
      std::vector<std::byte> whole(PackedBytes(kind, 32, cols)), parts(whole.size());
      PackRows(kind, all, 0, 32, cols, whole);
      // Last part first.
      size_t end = 32;
      for (const size_t begin : {29u, 20u, 13u, 12u, 5u, 0u}) {
        const std::span<const float> some(all.data() + begin * cols, (end - begin) * cols);
        PackRows(kind, some, begin, end - begin, cols, parts);
        end = begin;
      }
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size()), 0) << static_cast<int>(kind);
    }
  });
}

}  // namespace
}  // namespace mk
