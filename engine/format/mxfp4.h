// MXFP4 and MXFP4SQ: 4-bit floats in groups of 32 with one scale byte. Scalar codecs; the fast
// kernels are checked against these.
//
// A matrix [R,C] (C a multiple of 32) is packed nibbles [R][C/2] followed by scales [R][C/32].
// Byte j of a row holds column 2j in its low and column 2j+1 in its high nibble. A nibble is
// e2m1: {0, .5, 1, 1.5, 2, 3, 4, 6} and, with bit 3, the same negated. A scale byte s is worth
// 2^(s-127) (e8m0); s = 0 is the subnormal 2^-127, s = 255 is invalid.
// MXFP4SQ appends one f32 smax and reads a scale byte as ((s+1)/256)^2 smax.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"

namespace mk {

inline constexpr size_t kMxfp4Group = 32;
inline constexpr uint8_t kInvalidE8m0 = 255;

// Value of each nibble.
inline constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(s-127); the caller has refused 255.
float DecodeE8m0(uint8_t scale);

// ((s+1)/256)^2 smax, rounded after each product.
float DecodeSquareScale(uint8_t scale, float smax);

// Exponent search of the encoder.
enum class Mxfp4Search {
  kNone,   // e = ceil(log2(max/6)): nothing clips
  kError,  // e or e-1, whichever leaves the smaller sum of squared errors. e+1 and e-2 never win.
};

// Encodes 32 values into 16 bytes and one scale byte (never 255). kNumeric when a value is not
// finite; the message holds the index in the group.
Status EncodeMxfp4Group(std::span<const float, 32> values, std::span<uint8_t, 16> packed,
                        uint8_t& scale, Mxfp4Search search = Mxfp4Search::kError);

// Encodes a matrix [rows][cols] into a whole blob of rows*cols/2 + rows*cols/32 bytes.
// kInvalidArgument on a size that does not fit, kNumeric with row and column on a value that is
// not finite.
Status EncodeMxfp4(std::span<const float> values, size_t rows, size_t cols,
                   std::span<std::byte> blob, Mxfp4Search search = Mxfp4Search::kError);

// Decodes a blob into [rows][cols]. kCorrupt on scale byte 255, with row and column group.
Status DecodeMxfp4(std::span<const std::byte> blob, size_t rows, size_t cols,
                   std::span<float> values);

// As above for MXFP4SQ (4 more bytes). The scale is the smallest that clips nothing.
Status EncodeMxfp4Sq(std::span<const float> values, size_t rows, size_t cols,
                     std::span<std::byte> blob);
Status DecodeMxfp4Sq(std::span<const std::byte> blob, size_t rows, size_t cols,
                     std::span<float> values);

}  // namespace mk
