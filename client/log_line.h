// One line of the daemon's log: "2026-11-30T13:40:11.123+00:00 4711 info loaded /m.bin ...".

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client/json_format.h"
#include "protocol/error.h"

namespace mk::client {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

// "trace", "debug", "info", "warn", "error".
std::string_view LogLevelName(LogLevel level);
std::optional<LogLevel> ParseLogLevel(std::string_view name);

struct LogLine {
  std::string time;     // as written; "" for a line that does not begin like one of ours
  int64_t time_ms = 0;  // since 1970
  uint64_t pid = 0;
  LogLevel level = LogLevel::kInfo;
  std::string message;
};

// A line without a head of its own goes on with `before`: it has its time, pid and level.
LogLine ParseLogLine(std::string_view text, const LogLine& before);

// {"time", "pid", "level", "message"}
Json LogLineToJson(const LogLine& line);

// A moment in milliseconds since 1970: "10m" and "2h" before `now_ms`; "14:05" or "14:05:33" of
// today, "2026-11-30", "2026-11-30 14:05:33" in local time; the same with T, and with Z or +01:00.
// Errors: kBadRequest.
protocol::Result<int64_t> ParseSince(const std::string& text, int64_t now_ms);

}  // namespace mk::client
