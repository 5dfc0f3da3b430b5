#include "engine/format/dtype.h"

namespace mk {

std::optional<DType> DTypeFromCode(uint8_t code) {
  switch (code) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kMxfp4;
    case 2:
      return DType::kI32;
    case 3:
      return DType::kVq1;
    case 4:
      return DType::kMxfp4Sq;
    case 16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kMxfp4:
      return "MXFP4";
    case DType::kI32:
      return "I32";
    case DType::kVq1:
      return "VQ1";
    case DType::kMxfp4Sq:
      return "MXFP4SQ";
    case DType::kBf16:
      return "BF16";
  }
  return "unknown";
}

uint32_t ColumnGroup(DType dtype) {
  switch (dtype) {
    case DType::kMxfp4:
    case DType::kMxfp4Sq:
      return 32;
    case DType::kVq1:
      return 16;
    default:
      return 1;
  }
}

std::optional<uint64_t> ElementCount(std::span<const uint32_t> dims) {
  constexpr uint64_t kMaxElements = uint64_t{1} << 48;
  if (dims.empty()) return std::nullopt;
  uint64_t count = 1;
  for (const uint32_t dim : dims) {
    if (dim == 0 || count > kMaxElements / dim) return std::nullopt;
    count *= dim;
  }
  return count;
}

std::optional<uint64_t> BlobBytes(DType dtype, std::span<const uint32_t> dims) {
  const std::optional<uint64_t> count = ElementCount(dims);
  if (!count) return std::nullopt;
  const uint32_t group = ColumnGroup(dtype);
  if (group > 1 && (dims.size() != 2 || dims[1] % group != 0)) return std::nullopt;
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return *count * 4;
    case DType::kBf16:
      return *count * 2;
    case DType::kMxfp4:
      return *count / 2 + *count / 32;
    case DType::kMxfp4Sq:
      return *count / 2 + *count / 32 + 4;
    case DType::kVq1:
      return *count / 16;
  }
  return std::nullopt;
}

}  // namespace mk
