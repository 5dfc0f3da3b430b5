// `mk top`: the daemon at work, live on a terminal, once or as JSON elsewhere.

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "client/commands.h"
#include "client/daemon_feed.h"
#include "client/report.h"
#include "client/screen.h"
#include "client/signals.h"
#include "client/top_text.h"
#include "client/top_view.h"

namespace mk::client {
namespace {

constexpr uint64_t kShortestIntervalMs = 100;
constexpr uint64_t kLongestIntervalMs = 3600'000;

struct TopOptions {
  AccessOptions access;
  milliseconds interval{1000};
  bool once = false;
  bool json = false;
};

std::optional<int> ParseTop(const Command& command, int argc, char** argv, TopOptions& options) {
  std::string interval = "1s";
  CommandLine line(command);
  line.app()
      .add_option("-i,--interval", interval, "Time between two looks: 500ms, 2s (default 1s)")
      ->type_name("TIME");
  line.app().add_flag("--once", options.once,
                      "Print one look and leave; so it is where no terminal is");
  line.app().add_flag("--json", options.json, "One JSON object per look, a line each");
  line.AddAccess(options.access, false);
  if (auto code = line.Parse(argc, argv)) return code;
  auto time = ParseDurationMs(interval);
  if (!time) return ReportError(time.error());
  if (*time < kShortestIntervalMs || *time > kLongestIntervalMs) {
    return ReportUsage("--interval " + interval + " is out of range", "from 100ms to 1h");
  }
  options.interval = milliseconds(*time);
  return std::nullopt;
}

std::string TimeNow(const char* format, bool utc) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  utc ? ::gmtime_r(&now, &parts) : ::localtime_r(&now, &parts);
  std::array<char, 64> text;
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

std::string JsonTime() {
  return TimeNow("%Y-%m-%dT%H:%M:%SZ", true);
}

bool WantsColor() {
  const char* no_color = std::getenv("NO_COLOR");
  return no_color == nullptr || no_color[0] == '\0';
}

// A terminal whose cursor can be moved.
bool IsScreen() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

// ---------------------------------------------------------------- one look

protocol::Result<DaemonPicture> LookOnce(const AccessOptions& access) {
  auto session = OpenSession(access);
  if (!session) return protocol::Fail(std::move(session.error()));
  auto status = AskFor<protocol::StatusDone>(*session, protocol::StatusArgs{});
  if (!status) return protocol::Fail(std::move(status.error()));
  auto metrics = AskFor<protocol::MetricsDone>(*session, protocol::MetricsArgs{"families"});
  if (!metrics) return protocol::Fail(std::move(metrics.error()));
  return DaemonPicture{std::move(*status), std::move(metrics->families), Clock::now()};
}

int ShowOnce(const TopOptions& options) {
  auto picture = LookOnce(options.access);
  Output output(STDOUT_FILENO);
  if (!picture) {
    if (options.json) output.Write(JsonLine(ErrorToJson(picture.error())));
    FinishOutput(output, protocol::kExitFailed);
    return ReportError(picture.error());
  }
  const TopView view = TopHistory().Take(std::move(*picture));
  if (options.json) {
    output.Write(JsonLine(TopJson(view, JsonTime())));
  } else {
    TopStyle style;
    style.color = IsScreen() && WantsColor();
    for (const std::string& line : TopText(view, style)) output.Write(line + "\n");
  }
  return FinishOutput(output, protocol::kExitDone);
}

// ---------------------------------------------------------------- look after look

// Asks at the interval, shows what came and why nothing came.
class Watch {
 public:
  Watch(protocol::SocketPaths paths, milliseconds interval)
      : feed_(std::move(paths)), interval_(interval), next_(Clock::now()) {}

  // For poll(), with the time until the next question.
  pollfd connection() { return {feed_.fd(), feed_.events(), 0}; }
  int wait_ms() const { return PollTimeout(next_); }

  // True when there is something new to show: an answer, or again none at the time of the next
  // one. `revents`: of the connection.
  bool Turn(short revents) {
    feed_.OnReady(revents);
    bool news = false;
    if (auto picture = feed_.Take()) {
      view_ = history_.Take(std::move(*picture));
      news = true;
    }
    const bool had_trouble = trouble_.has_value();
    if (Clock::now() >= next_) {
      next_ = Clock::now() + interval_;
      feed_.Ask();
      trouble_ = feed_.trouble();
      return news || trouble_;
    }
    trouble_ = feed_.trouble();
    return news || trouble_.has_value() != had_trouble;
  }

  const std::optional<TopView>& view() const { return view_; }
  const std::optional<protocol::Error>& trouble() const { return trouble_; }

 private:
  DaemonFeed feed_;
  const milliseconds interval_;
  Deadline next_;
  TopHistory history_;
  std::optional<TopView> view_;
  std::optional<protocol::Error> trouble_;
};

int ShowJson(const TopOptions& options, protocol::SocketPaths paths) {
  Output output(STDOUT_FILENO);
  const SignalWatch signals;
  Watch watch(std::move(paths), options.interval);
  while (true) {
    std::array<pollfd, 3> ready = {{{signals.fd(), POLLIN, 0},
                                    watch.connection(),
                                    {output.pending() ? output.fd() : -1, POLLOUT, 0}}};
    ::poll(ready.data(), ready.size(), watch.wait_ms());
    if (signals.Take() > 0) return protocol::kExitInterrupted;
    // A reader that does not read gets fewer looks, not all of them later.
    if (watch.Turn(ready[1].revents) && !output.pending()) {
      if (watch.trouble()) {
        Json line = {{"time", JsonTime()}};
        line.update(ErrorToJson(*watch.trouble()));
        output.Write(JsonLine(line));
      } else if (watch.view()) {
        output.Write(JsonLine(TopJson(*watch.view(), JsonTime())));
      }
    }
    output.Pump();
    if (output.closed()) return FinishOutput(output, protocol::kExitDone);
  }
}

int ShowLive(const TopOptions& options, const protocol::SocketPaths& paths) {
  Screen screen;
  Watch watch(paths, options.interval);
  TopStyle style;
  style.color = WantsColor();
  while (true) {
    std::array<pollfd, 4> ready = {{{screen.signals_fd(), POLLIN, 0},
                                    {screen.keys_fd(), POLLIN, 0},
                                    {screen.output_fd(), POLLOUT, 0},
                                    watch.connection()}};
    ::poll(ready.data(), ready.size(), watch.wait_ms());
    const Screen::Events events = screen.Take();
    if (events.leave) return protocol::kExitDone;
    screen.Pump();
    const bool news = watch.Turn(ready[3].revents);
    if (!news && !events.redraw) continue;
    style.columns = screen.size().columns;
    style.rows = screen.size().rows;
    style.clock = TimeNow("%H:%M:%S", false);
    if (watch.trouble()) {
      screen.Draw(TopWaitingText(*watch.trouble(), paths.socket, style));
    } else if (watch.view()) {
      screen.Draw(TopText(*watch.view(), style));
    }
  }
}

}  // namespace

int TopCommand(const Command& command, int argc, char** argv) {
  TopOptions options;
  if (auto code = ParseTop(command, argc, argv, options)) return *code;
  if (options.once || (!options.json && !IsScreen())) return ShowOnce(options);
  auto paths = protocol::FindSocketPaths(options.access.socket);
  if (!paths) return ReportError(paths.error());
  return options.json ? ShowJson(options, std::move(*paths)) : ShowLive(options, *paths);
}

}  // namespace mk::client
