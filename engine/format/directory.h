// The header of a container: magic, config text, and the directory of tensors.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/tensor_entry.h"

namespace mk {

inline constexpr std::string_view kMagicV1 = "MKIM0001";
inline constexpr std::string_view kMagicV2 = "MKIM0002";
inline constexpr uint32_t kMaxConfigBytes = 16u << 20;
inline constexpr uint32_t kMaxTensors = 1u << 22;
inline constexpr size_t kMaxNameBytes = 512;
inline constexpr uint64_t kBlobAlignment = 64;

struct Directory {
  int version = 2;
  std::string_view config_json;      // into the header; "" in version 1
  std::vector<TensorEntry> entries;  // names point into the header
  std::vector<std::string> warnings;
};

// Reads all bytes before the blobs, no more than their lengths, checked against the file's size,
// call for.
Result<std::string> ReadHeader(int fd, uint64_t file_size, const std::string& path);

// Takes a header apart and checks every entry: name, type, dims, size, alignment, range; and that
// no two blobs overlap. `header` must stay where it is as long as the result is used.
Result<Directory> ParseHeader(std::string_view header, uint64_t file_size, const std::string& path);

}  // namespace mk
