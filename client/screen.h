// Screen: the whole terminal for a while, and what happens to it: keys, resizes, Ctrl-C, Ctrl-Z.
//
// The alternate screen is taken when a Screen is made and given back, with the cursor and the
// terminal's settings, when it goes: also after Ctrl-C, SIGTERM and SIGHUP, which come as events,
// and while the process is stopped. Nothing here blocks on a terminal that does not take output.
// One at a time.

#pragma once

#include <termios.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "client/output.h"
#include "client/signals.h"

namespace mk::client {

struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
  bool operator==(const ScreenSize&) const = default;
};

// Size of the terminal behind a descriptor; 80 x 24 when it does not tell.
ScreenSize TerminalSize(int fd);

class Screen {
 public:
  // Of standard output, which is a terminal. Keys come from standard input if that is one too.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  ScreenSize size() const { return TerminalSize(output_.fd()); }
  // Shows these lines and nothing else; what does not fit is cut off. A frame that finds the one
  // before it not yet shown is left out.
  void Draw(const std::vector<std::string>& lines);

  // For poll(): -1 where there is nothing to wait for.
  int signals_fd() const { return signals_.fd(); }
  int keys_fd() const { return settings_ ? keys_fd_ : -1; }
  int output_fd() const { return output_.pending() ? output_.fd() : -1; }
  void Pump() { output_.Pump(); }

  struct Events {
    bool leave = false;   // q, Ctrl-C, SIGTERM, SIGHUP, or the terminal is gone
    bool redraw = false;  // resized, or continued after a stop
  };
  Events Take();

 private:
  void Enter();
  void Leave();
  void Stop();

  Output output_;
  const SignalWatch signals_{SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP, SIGCONT};
  int keys_fd_ = 0;
  std::optional<termios> settings_;  // as they were
};

}  // namespace mk::client
