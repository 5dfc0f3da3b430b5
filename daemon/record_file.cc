#include "daemon/record_file.h"

#include <bit>
#include <cstring>
#include <span>

#include "engine/format/digest.h"

namespace mk::daemon {
namespace {

constexpr size_t kHeadBytes = kRecordMagicBytes + 2 * sizeof(uint64_t);

static_assert(std::endian::native == std::endian::little);

uint64_t NumberAt(std::string_view bytes, size_t offset) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

void Append(std::string& bytes, uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

uint64_t DigestOf(std::string_view payload) {
  return Xxh3Of(std::as_bytes(std::span(payload.data(), payload.size())));
}

}  // namespace

std::string EncodeRecordFile(std::string_view magic, std::string_view payload) {
  std::string bytes(magic);
  Append(bytes, payload.size());
  Append(bytes, DigestOf(payload));
  return bytes.append(payload);
}

Result<std::string_view> DecodeRecordFile(std::string_view magic, std::string_view what,
                                          std::string_view bytes) {
  if (bytes.size() < kHeadBytes) return Fail(ErrorCode::kCorrupt, "it is too short");
  if (!bytes.starts_with(magic)) {
    return Fail(ErrorCode::kCorrupt, "it is no " + std::string(what));
  }
  const std::string_view payload = bytes.substr(kHeadBytes);
  if (NumberAt(bytes, kRecordMagicBytes) != payload.size()) {
    return Fail(ErrorCode::kCorrupt, "its length is not the one that it tells");
  }
  if (NumberAt(bytes, kRecordMagicBytes + sizeof(uint64_t)) != DigestOf(payload)) {
    return Fail(ErrorCode::kCorrupt, "its digest is wrong");
  }
  return payload;
}

}  // namespace mk::daemon
