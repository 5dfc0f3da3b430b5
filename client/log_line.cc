#include "client/log_line.h"

#include <array>
#include <charconv>
#include <ctime>

#include "client/command_line.h"
#include "client/report.h"

namespace mk::client {
namespace {

constexpr std::array<std::string_view, 5> kLevels = {"trace", "debug", "info", "warn", "error"};

// Takes parts off the front of a text; after the first that is not there, none are.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  // Exactly so many digits.
  int Digits(size_t count) {
    int value = 0;
    for (size_t i = 0; i < count; ++i) {
      if (i >= rest_.size() || rest_[i] < '0' || rest_[i] > '9') ok_ = false;
      if (!ok_) return 0;
      value = value * 10 + (rest_[i] - '0');
    }
    rest_.remove_prefix(count);
    return value;
  }
  bool Skip(char one) {
    const bool there = ok_ && Sees(one);
    if (there) rest_.remove_prefix(1);
    return there;
  }
  void Need(char one) { ok_ = Skip(one); }
  bool Sees(char one) const { return !rest_.empty() && rest_[0] == one; }
  // Up to the next space, which is taken too.
  std::string_view Word() {
    const size_t end = rest_.find(' ');
    if (end == std::string_view::npos || end == 0) ok_ = false;
    if (!ok_) return {};
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return word;
  }
  std::string_view rest() const { return rest_; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

struct Moment {
  std::tm local{};  // or of the zone, if there is one
  int milliseconds = 0;
  std::optional<int64_t> zone_minutes;  // east of Greenwich
};

void ScanDate(Scanner& scanner, Moment& moment) {
  moment.local.tm_year = scanner.Digits(4) - 1900;
  scanner.Need('-');
  moment.local.tm_mon = scanner.Digits(2) - 1;
  scanner.Need('-');
  moment.local.tm_mday = scanner.Digits(2);
}

// HH:MM, then :SS, .mmm and a zone, if they are there.
void ScanClock(Scanner& scanner, Moment& moment) {
  moment.local.tm_hour = scanner.Digits(2);
  scanner.Need(':');
  moment.local.tm_min = scanner.Digits(2);
  if (scanner.Skip(':')) moment.local.tm_sec = scanner.Digits(2);
  if (scanner.Skip('.')) moment.milliseconds = scanner.Digits(3);
  if (scanner.Skip('Z')) {
    moment.zone_minutes = 0;
  } else if (scanner.Sees('+') || scanner.Sees('-')) {
    const int sign = scanner.Skip('-') ? -1 : 1;
    scanner.Skip('+');
    const int hours = scanner.Digits(2);
    scanner.Need(':');
    moment.zone_minutes = sign * (hours * 60 + scanner.Digits(2));
  }
}

bool InRange(const std::tm& time) {
  return time.tm_mon >= 0 && time.tm_mon < 12 && time.tm_mday >= 1 && time.tm_mday <= 31 &&
         time.tm_hour < 24 && time.tm_min < 60 && time.tm_sec <= 60;
}

int64_t ToMilliseconds(Moment moment) {
  moment.local.tm_isdst = -1;
  const int64_t seconds = moment.zone_minutes ? ::timegm(&moment.local) - *moment.zone_minutes * 60
                                              : std::mktime(&moment.local);
  return seconds * 1000 + moment.milliseconds;
}

std::optional<int64_t> ScanMoment(std::string_view text, int64_t now_ms) {
  Moment moment;
  Scanner scanner(text);
  const bool clock_only = text.size() > 2 && text[2] == ':';
  if (clock_only) {
    const auto now = static_cast<std::time_t>(now_ms / 1000);
    ::localtime_r(&now, &moment.local);
    moment.local.tm_sec = 0;
    ScanClock(scanner, moment);
  } else {
    ScanDate(scanner, moment);
    if (scanner.Skip('T') || scanner.Skip(' ')) ScanClock(scanner, moment);
  }
  if (!scanner.done() || !InRange(moment.local)) return std::nullopt;
  return ToMilliseconds(moment);
}

}  // namespace

std::string_view LogLevelName(LogLevel level) {
  return kLevels[static_cast<size_t>(level)];
}

std::optional<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "warning") return LogLevel::kWarn;
  if (name == "critical") return LogLevel::kError;
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

LogLine ParseLogLine(std::string_view text, const LogLine& before) {
  Scanner scanner(text);
  const std::string_view time = scanner.Word();
  const std::string_view pid = scanner.Word();
  const std::optional<LogLevel> level = ParseLogLevel(scanner.Word());
  const std::optional<int64_t> time_ms = ScanMoment(time, 0);
  LogLine line;
  const auto end = std::from_chars(pid.data(), pid.data() + pid.size(), line.pid);
  const bool number = !pid.empty() && end.ec == std::errc() && end.ptr == pid.data() + pid.size();
  if (!scanner.ok() || !number || !level || !time_ms) {
    line = before;
    line.message = text;
    return line;
  }
  line.time = time;
  line.time_ms = *time_ms;
  line.level = *level;
  line.message = scanner.rest();
  return line;
}

Json LogLineToJson(const LogLine& line) {
  return {{"time", line.time},
          {"pid", line.pid},
          {"level", std::string(LogLevelName(line.level))},
          {"message", line.message}};
}

protocol::Result<int64_t> ParseSince(const std::string& text, int64_t now_ms) {
  if (const std::optional<int64_t> moment = ScanMoment(text, now_ms)) return *moment;
  if (const auto duration = ParseDurationMs(text)) {
    return now_ms - static_cast<int64_t>(*duration);
  }
  return protocol::Fail(
      UsageError("\"" + text + "\" is neither a time nor a duration",
                 "for example 10m, 2h, 14:05, 2026-11-30 or \"2026-11-30 14:05:33\""));
}

}  // namespace mk::client
