// Deadlines on the steady clock.

#pragma once

#include <algorithm>
#include <chrono>
#include <climits>

namespace mk::client {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
using std::chrono::milliseconds;

inline constexpr Deadline kNever = Deadline::max();

inline Deadline After(milliseconds time) {
  return Clock::now() + time;
}

// Milliseconds until then for poll(): rounded up, 0 when it has passed, -1 for kNever.
inline int PollTimeout(Deadline deadline) {
  if (deadline == kNever) return -1;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

}  // namespace mk::client
