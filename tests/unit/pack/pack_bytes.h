// Short ways to the bytes of packs in tests.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/pack/pack_file.h"

namespace mk::test {

std::string ReadBytes(const std::string& path);
void WriteBytes(const std::string& path, const std::string& bytes);

// Bytes of MKMEM002 with a field replaced at `offset` and the digest of the header made good again,
// as an attacker would.
std::string WithHeaderField(std::string bytes, size_t offset, std::span<const std::byte> value);
template <typename T>
std::string WithHeaderField(const std::string& bytes, size_t offset, T value) {
  return WithHeaderField(bytes, offset, std::as_bytes(std::span(&value, 1)));
}
// The same for a field of entry `entry` of the table.
std::string WithTableField(std::string bytes, size_t entry, size_t offset,
                           std::span<const std::byte> value);
template <typename T>
std::string WithTableField(const std::string& bytes, size_t entry, size_t offset, T value) {
  return WithTableField(bytes, entry, offset, std::as_bytes(std::span(&value, 1)));
}
// Section `entry` with one byte replaced and all digests made good again.
std::string WithSectionByte(std::string bytes, const PackInfo& info, size_t entry, size_t offset,
                            uint8_t value);

}  // namespace mk::test
