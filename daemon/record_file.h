// Small files that hold one record of ours:
//
//   magic (8 bytes), bytes of the payload (u64), XXH3-64 of the payload (u64), payload
//
// with the numbers in little-endian. Thread-safe.

#pragma once

#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace mk::daemon {

inline constexpr size_t kRecordMagicBytes = 8;

std::string EncodeRecordFile(std::string_view magic, std::string_view payload);
// The payload, within `bytes`. `what`: "record of a job", for errors. Errors: kCorrupt.
Result<std::string_view> DecodeRecordFile(std::string_view magic, std::string_view what,
                                          std::string_view bytes);

}  // namespace mk::daemon
