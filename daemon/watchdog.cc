#include "daemon/watchdog.h"

#include <utility>

namespace mk::daemon {

// Four reports in the time that one is due: a machine under load may delay some.
Watchdog::Watchdog(std::chrono::microseconds limit, Engine engine)
    : engine_(std::move(engine)), interval_(limit / 4) {
  if (limit.count() > 0) next_ = Clock::time_point();
}

bool Watchdog::Due(Clock::time_point now) {
  if (!next_ || now < *next_) return false;
  next_ = now + interval_;
  const uint64_t beat = engine_.heartbeat();
  const bool alive = seen_ && beat != *seen_;
  if (seen_ && !alive && !silent_since_) silent_since_ = now - interval_;
  if (alive) silent_since_.reset();
  seen_ = beat;
  engine_.wake();
  return alive;
}

Clock::duration Watchdog::silence(Clock::time_point now) const {
  return silent_since_ ? now - *silent_since_ : Clock::duration::zero();
}

}  // namespace mk::daemon
