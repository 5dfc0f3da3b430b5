// Cached rows that are rounded to FP8 in blocks, and the form in which caches keep them.
//
// Per block of 64 values (the last one may be shorter): m = max(max|v|, 1e-4), the scale is 2^e
// with e the least integer such that m <= 448 * 2^e, and a value becomes e4m3(v / 2^e) * 2^e, the
// quotient rounded to the nearest value of e4m3 (4 bits of exponent, 3 of mantissa, up to 448),
// ties to the even code. The result is a float again, exactly code times scale, so that a row can
// be kept as codes and exponents without loss.
//
// A row has a first part that is rounded and a tail that is not. Kept rows:
//   [first] codes (sign, exponent + 7, mantissa), [blocks] exponents e as int8, padding to a
//   multiple of 4 bytes, [tail] floats.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mk {

inline constexpr size_t kFp8Block = 64;

// Rounds x in place and writes its codes and the exponents of its blocks. Returns false when a
// value is not finite; the outputs are then undefined.
bool RoundToFp8(std::span<float> x, uint8_t* codes, int8_t* exponents);

// How the rows of a cache are kept.
struct CachedRowShape {
  size_t first = 0;  // values that were rounded to FP8
  size_t tail = 0;
  bool packed = true;  // false: plain floats, for rows that were not rounded

  size_t width() const { return first + tail; }
  size_t blocks() const { return (first + kFp8Block - 1) / kFp8Block; }
  size_t tail_offset() const { return (first + blocks() + 3) / 4 * 4; }
  // Of a kept row, a multiple of 4.
  size_t bytes() const {
    return packed ? tail_offset() + tail * sizeof(float) : width() * sizeof(float);
  }
};

// Rounds the first part of `row` [width] in place if the shape is packed, and writes the kept form
// to `out`, aligned to 4 bytes. Returns false when a value of the first part is not finite.
bool StoreCachedRow(const CachedRowShape& shape, std::span<float> row, std::byte* out);

// The floats of `count` kept rows, `stride` bytes apart: out [count][width].
void LoadCachedRows(const CachedRowShape& shape, const std::byte* rows, size_t stride, size_t count,
                    float* out);

}  // namespace mk
