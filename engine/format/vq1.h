// VQ1: one byte per 16 consecutive columns, an index into a codebook shared by the whole file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"

namespace mk {

inline constexpr size_t kVq1Group = 16;
inline constexpr size_t kVq1Entries = 256;
inline constexpr size_t kVq1CodebookSize = kVq1Entries * kVq1Group;  // [256][16] floats

// Nearest entry: the smallest sum of (v-c)^2 in f32 in index order, the lowest index on a tie.
// `weights`, 16 of them or none, multiply the squared terms.
uint8_t NearestVq1(std::span<const float, 16> values, std::span<const float> codebook,
                   std::span<const float> weights = {});

// Encodes [rows][cols] (cols a multiple of 16) into rows*cols/16 bytes. `column_weights` has cols
// values or none. kInvalidArgument on sizes that do not fit, kNumeric on a value that is not
// finite.
Status EncodeVq1(std::span<const float> values, size_t rows, size_t cols,
                 std::span<const float> codebook, std::span<const float> column_weights,
                 std::span<std::byte> blob);

Status DecodeVq1(std::span<const std::byte> blob, size_t rows, size_t cols,
                 std::span<const float> codebook, std::span<float> values);

}  // namespace mk
