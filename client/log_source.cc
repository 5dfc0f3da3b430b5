#include "client/log_source.h"

#include "protocol/log_path.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;

// A daemon that hangs is the very reason to look at its log.
constexpr milliseconds kPatience{1000};

// In single quotes if a shell would make more of it than one word.
std::string ShellWord(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@/+";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

protocol::Result<LogSource> SourceOf(const protocol::StatusDone& status, const JournalWish& wish) {
  if (!status.log.empty()) return LogSource{status.log, true};
  const std::string who = "the daemon (pid " + std::to_string(status.pid) + ") logs to ";
  if (!status.journal_unit.empty()) {
    return protocol::Fail(ErrorCode::kNotFound, who + "the journal, not to a file",
                          JournalCommand(status.journal_unit, wish));
  }
  return protocol::Fail(ErrorCode::kNotFound, who + "its standard error, not to a file",
                        "look where it was started; `mk restart` starts one that writes a file");
}

}  // namespace

std::string JournalCommand(const std::string& unit, const JournalWish& wish) {
  std::string command =
      "journalctl --user -u " + ShellWord(unit.empty() ? "microkimid.service" : unit);
  command += " -n " + wish.lines;
  if (wish.follow) command += " -f";
  if (!wish.since.empty()) {
    // "10m" is a time to us; to journalctl it is "-10m".
    const bool duration = wish.since.find_first_of(":-") == std::string::npos;
    command += " --since " + ShellWord(duration ? "-" + wish.since : wish.since);
  }
  return command + (wish.priority.empty() ? "" : " -p " + wish.priority);
}

protocol::Result<LogSource> FindLog(const AccessOptions& access, const JournalWish& wish) {
  auto paths = protocol::FindSocketPaths(access.socket);
  if (!paths) return protocol::Fail(std::move(paths.error()));
  if (auto session = ConnectSession(*paths)) {
    auto status = AskFor<protocol::StatusDone>(*session, protocol::StatusArgs{}, kPatience);
    if (status) return SourceOf(*status, wish);
  }
  auto file = protocol::LogFileOf(paths->socket);
  if (!file) return protocol::Fail(std::move(file.error()));
  return LogSource{std::move(*file), false};
}

}  // namespace mk::client
