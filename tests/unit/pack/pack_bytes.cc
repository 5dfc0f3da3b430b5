#include "tests/unit/pack/pack_bytes.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "engine/format/digest.h"

namespace mk::test {
namespace {

// Places in the header (docs/packs.md).
constexpr size_t kSections = 104, kTable = 112, kTableDigest = 128, kHeaderDigest = 136;

template <typename T>
T Load(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <typename T>
void Store(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
uint64_t Digest(const std::string& bytes, size_t at, size_t count) {
  return Xxh3Of(std::as_bytes(std::span(bytes)).subspan(at, count));
}
void SealHeader(std::string& bytes) {
  Store(bytes, kHeaderDigest, Digest(bytes, 0, kHeaderDigest));
}
void SealTable(std::string& bytes) {
  const auto table = Load<uint64_t>(bytes, kTable);
  const size_t size = Load<uint32_t>(bytes, kSections) * kPackEntryBytes;
  Store(bytes, kTableDigest, Digest(bytes, table, size));
  SealHeader(bytes);
}

}  // namespace

std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string WithHeaderField(std::string bytes, size_t offset, std::span<const std::byte> value) {
  std::memcpy(bytes.data() + offset, value.data(), value.size());
  SealHeader(bytes);
  return bytes;
}

std::string WithTableField(std::string bytes, size_t entry, size_t offset,
                           std::span<const std::byte> value) {
  const size_t at = Load<uint64_t>(bytes, kTable) + entry * kPackEntryBytes + offset;
  std::memcpy(bytes.data() + at, value.data(), value.size());
  SealTable(bytes);
  return bytes;
}

std::string WithSectionByte(std::string bytes, const PackInfo& info, size_t entry, size_t offset,
                            uint8_t value) {
  const PackSection& section = info.sections[entry];
  bytes[section.offset + offset] = static_cast<char>(value);
  const size_t digest = Load<uint64_t>(bytes, kTable) + entry * kPackEntryBytes + 40;
  Store(bytes, digest, Digest(bytes, section.offset, section.bytes));
  SealTable(bytes);
  return bytes;
}

}  // namespace mk::test
