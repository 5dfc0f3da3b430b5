// Element types of MKIM tensors and the size of their blobs.

#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace mk {

static_assert(std::endian::native == std::endian::little,
              "model files are read and written in the byte order of the machine");

// The numbers are those of the file. All values little-endian.
enum class DType : uint8_t {
  kF32 = 0,      // IEEE binary32
  kMxfp4 = 1,    // [R,C]: e2m1 nibbles [R][C/2], then e8m0 scale bytes [R][C/32]
  kI32 = 2,      // two's complement
  kVq1 = 3,      // [R,C]: one byte per 16 columns, an index into vq_codebook [256][16]
  kMxfp4Sq = 4,  // as kMxfp4 with quadratic scale bytes, then one f32 smax
  kBf16 = 16,    // upper half of an f32; spine tensors of files with "format": 3
};

// nullopt for a code that no reader knows.
std::optional<DType> DTypeFromCode(uint8_t code);

// "F32", "MXFP4", ... Never fails.
std::string_view DTypeName(DType dtype);

// Columns of a matrix of this type come in multiples of this: 32, 16 or 1.
uint32_t ColumnGroup(DType dtype);

// Product of the dims; nullopt when there are none, one is 0, or the product exceeds 2^48.
std::optional<uint64_t> ElementCount(std::span<const uint32_t> dims);

// Bytes of a blob. nullopt when ElementCount is, or when a grouped type does not have two dims
// with whole groups of columns.
std::optional<uint64_t> BlobBytes(DType dtype, std::span<const uint32_t> dims);

}  // namespace mk
