#include "client/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "client/clock.h"

namespace mk::client {
namespace {

// Alternate screen, no cursor, long lines are cut instead of wrapped.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
constexpr const char* kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
// For a terminal that takes its time with the last bytes.
constexpr milliseconds kLastBytes{500};

// A line feed of its own would scroll the last row; every line is put at its place.
std::string At(size_t row) {
  return "\x1b[" + std::to_string(row + 1) + ";1H";
}

}  // namespace

ScreenSize TerminalSize(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

Screen::Screen() : output_(STDOUT_FILENO), keys_fd_(STDIN_FILENO) {
  Enter();
}

Screen::~Screen() {
  Leave();
}

void Screen::Enter() {
  termios settings{};
  if (::isatty(keys_fd_) == 1 && ::tcgetattr(keys_fd_, &settings) == 0) {
    settings_ = settings;
    // Keys at once and unseen; Ctrl-C and Ctrl-Z stay signals.
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    settings.c_cc[VMIN] = 0;
    settings.c_cc[VTIME] = 0;
    ::tcsetattr(keys_fd_, TCSANOW, &settings);
  }
  output_.Write(kEnter);
  output_.Pump();
}

void Screen::Leave() {
  output_.Write(kLeave);
  const Deadline deadline = After(kLastBytes);
  output_.Pump();
  while (output_.pending() && Clock::now() < deadline) {
    pollfd ready = {output_.fd(), POLLOUT, 0};
    ::poll(&ready, 1, PollTimeout(deadline));
    output_.Pump();
  }
  if (settings_) ::tcsetattr(keys_fd_, TCSANOW, &*settings_);
  settings_.reset();
}

// The shell gets its terminal back while the process sleeps.
void Screen::Stop() {
  Leave();
  ::raise(SIGSTOP);
  Enter();
}

void Screen::Draw(const std::vector<std::string>& lines) {
  if (output_.pending()) return;
  const size_t rows = size().rows;
  for (size_t row = 0; row < std::min(rows, lines.size()); ++row) {
    output_.Write(At(row) + lines[row] + "\x1b[0m\x1b[K");
  }
  if (lines.size() < rows) output_.Write(At(lines.size()) + "\x1b[J");
  output_.Pump();
}

Screen::Events Screen::Take() {
  Events events;
  while (const int signal = signals_.Next()) {
    switch (signal) {
      case SIGWINCH:
        events.redraw = true;
        break;
      case SIGTSTP:
        Stop();
        events.redraw = true;
        break;
      case SIGCONT:
        // After a SIGSTOP from elsewhere the terminal may have been used by others.
        Leave();
        Enter();
        events.redraw = true;
        break;
      default:
        events.leave = true;
    }
  }
  pollfd ready = {keys_fd(), POLLIN, 0};
  if (ready.fd >= 0 && ::poll(&ready, 1, 0) > 0) {
    std::array<char, 64> keys;
    const ssize_t got = ::read(keys_fd_, keys.data(), keys.size());
    if (got == 0 && (ready.revents & POLLHUP) != 0) events.leave = true;
    const auto end = keys.begin() + std::max<ssize_t>(got, 0);
    // The arrows and their kind begin with Esc and hold letters, but no q.
    if (std::any_of(keys.begin(), end, [](char key) { return key == 'q' || key == 'Q'; })) {
      events.leave = true;
    }
  }
  if (output_.closed()) events.leave = true;
  return events;
}

}  // namespace mk::client
