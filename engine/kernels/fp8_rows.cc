#include "engine/kernels/fp8_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/fp8_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// The values of `lanes` codes, before the scale: codes from 8 on are normal, their exponent and
// mantissa are those of a float 120 binades away; below they count steps of 2^-9.
HWY_INLINE VF DecodePart(VI code, VF scale) {
  const DI di;
  const DF df;
  const VI magnitude = hn::And(code, hn::Set(di, 0x7f));
  const VI sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
  const VF normal = hn::BitCast(df, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23)));
  const VF small = hn::Mul(hn::ConvertTo(df, magnitude), hn::Set(df, 0x1p-9f));
  const auto is_small = hn::RebindMask(df, hn::Lt(magnitude, hn::Set(di, 8)));
  const VF value = hn::IfThenElse(is_small, small, normal);
  const VF with_sign = hn::BitCast(df, hn::Or(hn::BitCast(di, value), sign));
  return hn::Mul(with_sign, scale);
}

HWY_INLINE VI LoadCodes(const uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DI(), static_cast<int32_t>(*p));
#else
  const hn::FixedTag<uint8_t, kRegisterLanes> d8;
  return hn::PromoteTo(DI(), hn::LoadU(d8, p));
#endif
}

// One block of up to 64 values.
HWY_INLINE void DecodeBlock(const uint8_t* codes, size_t count, float scale, float* out) {
  const VF factor = hn::Set(DF(), scale);
  size_t i = 0;
  for (; i + kRegisterLanes <= count; i += kRegisterLanes) {
    hn::StoreU(DecodePart(LoadCodes(codes + i), factor), DF(), out + i);
  }
  if (i == count) return;
  uint8_t rest[kRegisterLanes] = {};
  alignas(64) float values[kRegisterLanes];
  std::copy(codes + i, codes + count, rest);
  hn::StoreU(DecodePart(LoadCodes(rest), factor), DF(), values);
  std::copy_n(values, count - i, out + i);
}

}  // namespace

void LoadCachedRowsImpl(const CachedRowShape& shape, const std::byte* rows, size_t stride,
                        size_t count, float* out) {
  for (size_t r = 0; r < count; ++r, rows += stride, out += shape.width()) {
    if (!shape.packed) {
      std::memcpy(out, rows, shape.width() * sizeof(float));
      continue;
    }
    const auto* codes = reinterpret_cast<const uint8_t*>(rows);
    const auto* exponents = reinterpret_cast<const int8_t*>(rows + shape.first);
    for (size_t b = 0; b < shape.blocks(); ++b) {
      const size_t first = b * kFp8Block;
      const float scale = std::bit_cast<float>(static_cast<uint32_t>(exponents[b] + 127) << 23);
      DecodeBlock(codes + first, std::min(kFp8Block, shape.first - first), scale, out + first);
    }
    std::memcpy(out + shape.first, rows + shape.tail_offset(), shape.tail * sizeof(float));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(LoadCachedRowsImpl);

namespace {

constexpr float kLargest = 448.0f;
constexpr uint32_t kInfinite = 255u << 23;

// Nearest value of e4m3, of a magnitude. Adding and taking away 1.5 * 2^23 steps rounds to a whole
// number of steps, ties to even. A step is an eighth of the binade, and 2^-9 from 2^-6 down.
float RoundToE4m3(float magnitude) {
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t binade = std::max(bits & 0x7f800000u, (127u - 6) << 23);
  const float magic = std::bit_cast<float>(binade + (20u << 23)) * 1.5f;
  return std::min((magnitude + magic) - magic, kLargest);
}

// Code of a magnitude that e4m3 holds.
uint32_t CodeOf(float magnitude) {
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  return bits < (127u - 6) << 23 ? static_cast<uint32_t>(magnitude * 0x1p9f)
                                 : (bits >> 20) - (120u << 3);
}

bool RoundBlock(std::span<float> x, uint8_t* codes, int8_t* exponent) {
  uint32_t largest = std::bit_cast<uint32_t>(1e-4f);
  for (const float value : x) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  }
  if (largest >= kInfinite) return false;
  // largest = g 2^t, 1 <= g < 2; 448 = 1.75 * 2^8.
  const int t = static_cast<int>(largest >> 23) - 127;
  const int e = (largest & 0x7fffffu) <= 0x600000u ? t - 8 : t - 7;
  const float down = std::bit_cast<float>(static_cast<uint32_t>(127 - e) << 23);
  const float up = std::bit_cast<float>(static_cast<uint32_t>(127 + e) << 23);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i] * down);
    const uint32_t sign = bits & 0x80000000u;
    const float q = RoundToE4m3(std::bit_cast<float>(bits ^ sign));
    codes[i] = static_cast<uint8_t>(sign >> 24 | CodeOf(q));
    x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(q * up) | sign);
  }
  *exponent = static_cast<int8_t>(e);
  return true;
}

}  // namespace

bool RoundToFp8(std::span<float> x, uint8_t* codes, int8_t* exponents) {
  for (size_t first = 0, b = 0; first < x.size(); first += kFp8Block, ++b) {
    const std::span<float> block = x.subspan(first, std::min(kFp8Block, x.size() - first));
    if (!RoundBlock(block, codes + first, exponents + b)) return false;
  }
  return true;
}

bool StoreCachedRow(const CachedRowShape& shape, std::span<float> row, std::byte* out) {
  if (!shape.packed) {
    std::memcpy(out, row.data(), row.size_bytes());
    return true;
  }
  if (!RoundToFp8(row.first(shape.first), reinterpret_cast<uint8_t*>(out),
                  reinterpret_cast<int8_t*>(out + shape.first))) {
    return false;
  }
  std::memcpy(out + shape.tail_offset(), row.data() + shape.first, shape.tail * sizeof(float));
  return true;
}

void LoadCachedRows(const CachedRowShape& shape, const std::byte* rows, size_t stride, size_t count,
                    float* out) {
  HWY_DYNAMIC_DISPATCH(LoadCachedRowsImpl)(shape, rows, stride, count, out);
}

}  // namespace mk
#endif  // HWY_ONCE
