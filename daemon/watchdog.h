// Watchdog: decides when systemd may be told that the daemon lives.
//
// That the I/O thread runs shows by its asking. The engine's thread has to give a sign of its own:
// it is asked for one after every report, and without one, or any work done meanwhile, there is no
// further report; systemd then ends the service and starts it anew.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "daemon/step_task.h"

namespace mk::daemon {

class Watchdog {
 public:
  struct Engine {
    std::function<uint64_t()> heartbeat;  // changes whenever the engine has done something
    std::function<void()> wake;           // makes an engine that lives change it soon
  };

  // `limit`: reports must not be further apart; 0: none are wanted.
  Watchdog(std::chrono::microseconds limit, Engine engine);

  // When to ask again; nothing: never.
  std::optional<Clock::time_point> next() const { return next_; }
  // Whether to report now. False before its time, and while the engine gives no sign.
  bool Due(Clock::time_point now);
  // For how long the engine has been asked in vain; zero while it answers.
  Clock::duration silence(Clock::time_point now) const;

 private:
  const Engine engine_;
  const Clock::duration interval_;
  std::optional<Clock::time_point> next_;
  std::optional<uint64_t> seen_;  // the heartbeat when it was last asked
  std::optional<Clock::time_point> silent_since_;
};

}  // namespace mk::daemon
