// `mk logs`: the daemon's log, whether the daemon lives or not.

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <ctime>
#include <deque>

#include "client/commands.h"
#include "client/log_line.h"
#include "client/log_reader.h"
#include "client/log_source.h"
#include "client/report.h"
#include "client/table.h"

namespace mk::client {
namespace {

constexpr size_t kDefaultLines = 50;
constexpr size_t kMostLines = 1'000'000;
// Where the kernel does not tell of changes, and in case it forgot one.
constexpr int kLookAgainMs = 1000;

struct LogsOptions {
  AccessOptions access;
  std::string lines;  // as given
  std::optional<size_t> last;
  bool follow = false;
  std::string level;
  LogLevel least = LogLevel::kTrace;
  std::string since;
  std::optional<int64_t> since_ms;
  bool json = false;
};

std::optional<int> TakeValues(LogsOptions& options) {
  if (options.lines.empty()) {
    // Whoever names a time wants all since then.
    if (options.since.empty()) options.last = kDefaultLines;
  } else if (options.lines != "all") {
    const char* end = options.lines.data() + options.lines.size();
    const auto [stop, error] = std::from_chars(options.lines.data(), end, options.last.emplace());
    if (error != std::errc() || stop != end || *options.last > kMostLines) {
      return ReportUsage("--lines \"" + options.lines + "\" is not a number of lines",
                         "from 0 to " + std::to_string(kMostLines) + ", or all");
    }
  }
  if (!options.level.empty()) options.least = *ParseLogLevel(options.level);
  if (options.since.empty()) return std::nullopt;
  auto since = ParseSince(options.since, static_cast<int64_t>(std::time(nullptr)) * 1000);
  if (!since) return ReportError(since.error());
  options.since_ms = *since;
  return std::nullopt;
}

std::optional<int> ParseLogs(const Command& command, int argc, char** argv, LogsOptions& options) {
  CommandLine line(command);
  line.app()
      .add_option("-n,--lines", options.lines,
                  "Lines to show from the end, or all (default 50; with --since all since then)")
      ->type_name("N");
  line.app().add_flag("-f,--follow", options.follow, "Go on with what is written from now on");
  line.app()
      .add_option("--level", options.level, "Only what is at least so bad")
      ->type_name("LEVEL")
      ->check(OneOf({"trace", "debug", "info", "warn", "error"}));
  line.app()
      .add_option("--since", options.since,
                  "Only what is not older: 10m, 2h, 14:05, 2026-11-30, \"2026-11-30 14:05\"")
      ->type_name("TIME");
  line.app().add_flag("--json", options.json, "One JSON object per line");
  line.AddAccess(options.access, false);
  if (auto code = line.Parse(argc, argv)) return code;
  return TakeValues(options);
}

JournalWish WishOf(const LogsOptions& options) {
  const std::string lines = options.last ? std::to_string(*options.last) : "all";
  std::string priority = options.level;
  if (priority == "warn") priority = "warning";
  if (priority == "error") priority = "err";
  if (priority == "trace") priority = "debug";
  return {lines, options.follow, options.since, priority};
}

// Lines on their way to the output.
class Printer {
 public:
  Printer(const LogsOptions& options, Output& output)
      : options_(options), output_(output), paint_(IsFancyTerminal(output.fd())) {}

  // Keeps the last lines that are wanted.
  void Hold(std::string_view text) {
    if (!Wanted(text)) return;
    if (options_.last && *options_.last == 0) return;
    if (options_.last && held_.size() == *options_.last) held_.pop_front();
    held_.push_back(before_);
  }
  void PrintHeld() {
    for (const LogLine& line : held_) Write(line);
    held_.clear();
  }
  void Print(std::string_view text) {
    if (Wanted(text)) Write(before_);
  }

 private:
  bool Wanted(std::string_view text) {
    before_ = ParseLogLine(text, before_);
    return before_.level >= options_.least &&
           (!options_.since_ms || before_.time_ms >= *options_.since_ms);
  }
  void Write(const LogLine& line) {
    if (options_.json) return output_.Write(JsonLine(LogLineToJson(line)));
    Color color = Color::kNone;
    if (line.level == LogLevel::kError) color = Color::kRed;
    if (line.level == LogLevel::kWarn) color = Color::kYellow;
    if (line.level < LogLevel::kInfo) color = Color::kDim;
    std::string text = line.message;
    if (!line.time.empty()) {
      text = line.time + " " + std::to_string(line.pid) + " ";
      text.append(LogLevelName(line.level)).append(" ").append(line.message);
    }
    output_.Write(paint_(color, Printable(text)) + "\n");
  }

  const LogsOptions& options_;
  Output& output_;
  const Painter paint_;
  LogLine before_;  // the last line that was read
  std::deque<LogLine> held_;
};

// Wakes when something in the folder of a file changes.
class FolderWatch {
 public:
  explicit FolderWatch(const std::string& file)
      : folder_(file.substr(0, file.rfind('/'))), fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

  // False: the reader of standard output has left.
  bool Wait() {
    constexpr uint32_t kChanges = IN_MODIFY | IN_CREATE | IN_MOVED_TO;
    // The folder may not have been there before; adding it again changes nothing.
    if (fd_) ::inotify_add_watch(fd_.get(), folder_.c_str(), kChanges);
    std::array<pollfd, 2> ready = {{{fd_.get(), POLLIN, 0}, {STDOUT_FILENO, 0, 0}}};
    ::poll(ready.data(), ready.size(), kLookAgainMs);
    std::array<char, 4096> events;
    while (fd_ && ::read(fd_.get(), events.data(), events.size()) > 0) continue;
    return (ready[1].revents & (POLLERR | POLLNVAL)) == 0;
  }

 private:
  const std::string folder_;
  UniqueFd fd_;
};

int Follow(const std::string& file, LogReader& reader, Printer& printer, Output& output) {
  FolderWatch folder(file);
  while (true) {
    auto read = reader.Read([&](std::string_view line) { printer.Print(line); });
    if (!read) return ReportError(read.error());
    if (!output.Drain()) return FinishOutput(output, protocol::kExitDone);
    if (!folder.Wait()) LeaveOnClosedPipe();
  }
}

protocol::Error NoLog(const std::string& file, const JournalWish& wish) {
  return {protocol::ErrorCode::kNotFound,
          "there is no log at " + file,
          "the daemon writes it when it runs in the background; one that systemd runs: " +
              JournalCommand({}, wish),
          {}};
}

}  // namespace

int LogsCommand(const Command& command, int argc, char** argv) {
  LogsOptions options;
  if (auto code = ParseLogs(command, argc, argv, options)) return *code;
  auto source = FindLog(options.access, WishOf(options));
  if (!source) return ReportError(source.error());
  LogReader reader(source->file);
  Output output(STDOUT_FILENO);
  Printer printer(options, output);
  auto read = reader.Read([&](std::string_view line) { printer.Hold(line); });
  if (!read) return ReportError(read.error());
  if (!reader.found() && !options.follow) return ReportError(NoLog(source->file, WishOf(options)));
  if (!options.follow) reader.Finish([&](std::string_view line) { printer.Hold(line); });
  printer.PrintHeld();
  if (!options.follow) return FinishOutput(output, protocol::kExitDone);
  if (!reader.found() && ::isatty(STDERR_FILENO) == 1) {
    std::fputs(("mk: waiting for " + Printable(source->file) + "\n").c_str(), stderr);
  }
  return Follow(source->file, reader, printer, output);
}

}  // namespace mk::client
