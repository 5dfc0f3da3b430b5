#include "engine/kernels/fp4_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mk {
namespace {

constexpr uint32_t kInfinite = 255u << 23;

// Nearest whole number, ties to even, of |x| < 2^22.
float Nearest(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}

// Twice the nearest e2m1 value of q, |q| <= 6. Steps of e2m1 are .5 below 2, 1 below 4, then 2.
float RoundDoubled(float q) {
  const float magnitude = q < 0 ? -q : q;
  const float step = magnitude < 2 ? 0.5f : magnitude < 4 ? 1.0f : 2.0f;
  const float inverse = magnitude < 2 ? 2.0f : magnitude < 4 ? 1.0f : 0.5f;
  return Nearest(q * inverse) * (2 * step);
}

// One block: codes doubled, and their scale.
bool RoundBlock(float* x, int8_t* codes, float* scale) {
  uint32_t largest = std::bit_cast<uint32_t>(6 * 0x1p-126f);
  for (size_t i = 0; i < kFp4Block; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  if (largest >= kInfinite) return false;
  // largest = g 2^t, 1 <= g < 2; 6 = 1.5 * 2^2.
  const int t = static_cast<int>(largest >> 23) - 127;
  const int e = (largest & 0x7fffffu) <= 0x400000u ? t - 2 : t - 1;
  // 2^-e; where that is beyond a float, all values are far below the smallest normal one.
  const float down = std::bit_cast<float>(static_cast<uint32_t>(std::min(127 - e, 254)) << 23);
  const float half = std::bit_cast<float>(static_cast<uint32_t>(std::max(126 + e, 0)) << 23);
  for (size_t i = 0; i < kFp4Block; ++i) {
    const float doubled = RoundDoubled(x[i] * down);
    codes[i] = static_cast<int8_t>(doubled);
    x[i] = doubled * half;
  }
  *scale = half;
  return true;
}

}  // namespace

bool RoundToFp4(std::span<float> x, const Q8Rows& out) {
  for (size_t b = 0; b < x.size() / kFp4Block; ++b) {
    int8_t* const codes = out.values + b * kFp4Block;
    if (!RoundBlock(x.data() + b * kFp4Block, codes, out.scales + b)) return false;
    int32_t sum = 0;
    for (size_t i = 0; i < kFp4Block; ++i) sum += codes[i];
    out.offsets[b] = -kQ8Bias * sum;
  }
  return true;
}

bool StoreFp4Row(std::span<float> x, size_t index, std::byte* panels) {
  std::byte* group = panels + index / kPanelRows * PanelBytes(WeightKind::kQ8, x.size());
  const size_t lane = index % kPanelRows;
  for (size_t b = 0; b < x.size() / kFp4Block; ++b, group += kQ8GroupBytes) {
    int8_t codes[kFp4Block];
    float* const scales = reinterpret_cast<float*>(group);
    if (!RoundBlock(x.data() + b * kFp4Block, codes, scales + lane)) return false;
    auto* const bytes = reinterpret_cast<uint8_t*>(group + kPanelRows * sizeof(float)) + lane * 4;
    for (size_t i = 0; i < kFp4Block; ++i) {
      bytes[i / 4 * (4 * kPanelRows) + i % 4] = static_cast<uint8_t>(codes[i] + kQ8Bias);
    }
  }
  return true;
}

}  // namespace mk
