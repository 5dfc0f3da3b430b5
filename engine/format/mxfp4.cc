#include "engine/format/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

namespace mk {
namespace {

// Smallest |t| that gets magnitude code 1, 2, ... 7: midpoints, a tie goes away from zero.
constexpr std::array<float, 7> kThresholds = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
constexpr int kMinExponent = -127;
constexpr int kMaxExponent = 127;
constexpr float kLargestLevel = 6.0f;

uint8_t EncodeNibble(float scaled) {
  const float magnitude = std::min(std::fabs(scaled), kLargestLevel);
  uint8_t code = 0;
  for (const float threshold : kThresholds) code += threshold <= magnitude ? 1 : 0;
  return static_cast<uint8_t>(code | (std::signbit(scaled) ? 8 : 0));
}

// Smallest e with max <= 6 * 2^e, without a logarithm: max = m 2^q with m in [.5, 1), and
// 6 = .75 * 2^3.
int NaiveExponent(float max) {
  if (max == 0) return kMinExponent;
  int q = 0;
  const float m = std::frexp(max, &q);
  return std::clamp(m <= 0.75f ? q - 3 : q - 2, kMinExponent, kMaxExponent);
}

// Codes of 32 values at scale 2^e; returns the sum of squared errors.
double QuantizeAt(std::span<const float, 32> values, int e, std::array<uint8_t, 32>& codes) {
  double sum = 0;
  const double step = std::ldexp(1.0, e);
  const float inverse = std::ldexp(1.0f, -e);  // exact for every e of the range
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = EncodeNibble(values[i] * inverse);
    const double error = static_cast<double>(values[i]) - kE2m1[codes[i]] * step;
    sum += error * error;
  }
  return sum;
}

void Pack(const std::array<uint8_t, 32>& codes, std::span<uint8_t, 16> packed) {
  for (size_t j = 0; j < packed.size(); ++j) {
    packed[j] = static_cast<uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
  }
}

// Largest magnitude; the index of the first value that is not finite in `bad`.
float MaxMagnitude(std::span<const float> values, size_t& bad) {
  float max = 0;
  bad = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      bad = i;
      return 0;
    }
    max = std::max(max, std::fabs(values[i]));
  }
  return max;
}

Status CheckSizes(size_t values, size_t blob, size_t rows, size_t cols, size_t tail) {
  if (cols == 0 || cols % kMxfp4Group != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "MXFP4 needs columns in multiples of 32, not " + std::to_string(cols));
  }
  if (values != rows * cols || blob != rows * cols / 2 + rows * cols / 32 + tail) {
    return Fail(ErrorCode::kInvalidArgument, "MXFP4 buffers do not fit a matrix of " +
                                                 std::to_string(rows) + " x " +
                                                 std::to_string(cols));
  }
  return {};
}

tl::unexpected<Error> NotFinite(size_t row, size_t column) {
  return Fail(ErrorCode::kNumeric,
              "weight [" + std::to_string(row) + "][" + std::to_string(column) + "] is not finite",
              "MXFP4 cannot hold NaN or infinity; repair the source tensor");
}

// Calls encode(values of the group, its 16 bytes, its scale byte, row, first column).
template <typename EncodeGroup>
Status ForEachGroup(std::span<const float> values, size_t rows, size_t cols,
                    std::span<std::byte> blob, EncodeGroup&& encode) {
  auto* packed = reinterpret_cast<uint8_t*>(blob.data());
  uint8_t* scales = packed + rows * cols / 2;
  const size_t groups = rows * cols / kMxfp4Group;
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * kMxfp4Group;
    const Status status = encode(std::span<const float, 32>(values.data() + first, 32),
                                 std::span<uint8_t, 16>(packed + first / 2, 16), scales[g],
                                 first / cols, first % cols);
    if (!status) return status;
  }
  return {};
}

void DecodeGroup(const uint8_t* packed, float scale, float* values) {
  for (size_t j = 0; j < kMxfp4Group / 2; ++j) {
    values[2 * j] = kE2m1[packed[j] & 15] * scale;
    values[2 * j + 1] = kE2m1[packed[j] >> 4] * scale;
  }
}

}  // namespace

float DecodeE8m0(uint8_t scale) {
  // The exponent field of an f32 is the scale byte itself; byte 0 is half the smallest normal.
  const uint32_t bits = scale == 0 ? 0x00400000u : static_cast<uint32_t>(scale) << 23;
  return std::bit_cast<float>(bits);
}

float DecodeSquareScale(uint8_t scale, float smax) {
  const float t = static_cast<float>(scale + 1) * (1.0f / 256.0f);
  const float square = t * t;
  return square * smax;
}

Status EncodeMxfp4Group(std::span<const float, 32> values, std::span<uint8_t, 16> packed,
                        uint8_t& scale, Mxfp4Search search) {
  size_t bad = 0;
  const float max = MaxMagnitude(values, bad);
  if (bad < values.size()) return NotFinite(0, bad);
  int exponent = NaiveExponent(max);
  std::array<uint8_t, 32> codes{};
  const double error = QuantizeAt(values, exponent, codes);
  if (search == Mxfp4Search::kError && max > 0 && exponent > kMinExponent) {
    std::array<uint8_t, 32> finer{};
    if (QuantizeAt(values, exponent - 1, finer) < error) {
      codes = finer;
      --exponent;
    }
  }
  Pack(codes, packed);
  scale = static_cast<uint8_t>(exponent + 127);
  return {};
}

Status EncodeMxfp4(std::span<const float> values, size_t rows, size_t cols,
                   std::span<std::byte> blob, Mxfp4Search search) {
  const Status sizes = CheckSizes(values.size(), blob.size(), rows, cols, 0);
  if (!sizes) return sizes;
  return ForEachGroup(values, rows, cols, blob,
                      [search](std::span<const float, 32> group, std::span<uint8_t, 16> packed,
                               uint8_t& scale, size_t row, size_t column) -> Status {
                        size_t bad = 0;
                        MaxMagnitude(group, bad);
                        if (bad < group.size()) return NotFinite(row, column + bad);
                        return EncodeMxfp4Group(group, packed, scale, search);
                      });
}

Status DecodeMxfp4(std::span<const std::byte> blob, size_t rows, size_t cols,
                   std::span<float> values) {
  const Status sizes = CheckSizes(values.size(), blob.size(), rows, cols, 0);
  if (!sizes) return sizes;
  const auto* packed = reinterpret_cast<const uint8_t*>(blob.data());
  const uint8_t* scales = packed + rows * cols / 2;
  for (size_t g = 0; g < rows * cols / kMxfp4Group; ++g) {
    if (scales[g] == kInvalidE8m0) {
      const size_t first = g * kMxfp4Group;
      return Fail(ErrorCode::kCorrupt, "scale byte of row " + std::to_string(first / cols) +
                                           ", columns from " + std::to_string(first % cols) +
                                           ", is 255 (not a number)");
    }
    DecodeGroup(packed + g * kMxfp4Group / 2, DecodeE8m0(scales[g]),
                values.data() + g * kMxfp4Group);
  }
  return {};
}

Status EncodeMxfp4Sq(std::span<const float> values, size_t rows, size_t cols,
                     std::span<std::byte> blob) {
  const Status sizes = CheckSizes(values.size(), blob.size(), rows, cols, sizeof(float));
  if (!sizes) return sizes;
  float smax = 0;
  for (size_t first = 0; first < values.size(); first += kMxfp4Group) {
    size_t bad = 0;
    const float max = MaxMagnitude(values.subspan(first, kMxfp4Group), bad);
    if (bad < kMxfp4Group) return NotFinite(first / cols, first % cols + bad);
    smax = std::max(smax, max / kLargestLevel);
  }
  std::memcpy(blob.data() + blob.size() - sizeof smax, &smax, sizeof smax);
  return ForEachGroup(values, rows, cols, blob,
                      [smax](std::span<const float, 32> group, std::span<uint8_t, 16> packed,
                             uint8_t& scale, size_t, size_t) -> Status {
                        size_t bad = 0;
                        const float ideal = MaxMagnitude(group, bad) / kLargestLevel;
                        float code = 0;
                        if (ideal > 0 && smax > 0) {
                          code = std::clamp(std::ceil(256.0f * std::sqrt(ideal / smax)) - 1.0f,
                                            0.0f, 255.0f);
                        }
                        scale = static_cast<uint8_t>(code);
                        const float decoded = DecodeSquareScale(scale, smax);
                        // All-zero or vanishing groups: the reciprocal would be infinite.
                        const float inverse = decoded > 0 ? 1.0f / decoded : 0.0f;
                        std::array<uint8_t, 32> codes{};
                        if (std::isfinite(inverse) && inverse > 0) {
                          for (size_t i = 0; i < group.size(); ++i)
                            codes[i] = EncodeNibble(group[i] * inverse);
                        }
                        Pack(codes, packed);
                        return {};
                      });
}

Status DecodeMxfp4Sq(std::span<const std::byte> blob, size_t rows, size_t cols,
                     std::span<float> values) {
  const Status sizes = CheckSizes(values.size(), blob.size(), rows, cols, sizeof(float));
  if (!sizes) return sizes;
  float smax = 0;
  std::memcpy(&smax, blob.data() + blob.size() - sizeof smax, sizeof smax);
  if (!std::isfinite(smax) || smax < 0) {
    return Fail(ErrorCode::kCorrupt, "the MXFP4SQ scale maximum is negative or not finite");
  }
  const auto* packed = reinterpret_cast<const uint8_t*>(blob.data());
  const uint8_t* scales = packed + rows * cols / 2;
  for (size_t g = 0; g < rows * cols / kMxfp4Group; ++g) {
    DecodeGroup(packed + g * kMxfp4Group / 2, DecodeSquareScale(scales[g], smax),
                values.data() + g * kMxfp4Group);
  }
  return {};
}

}  // namespace mk
