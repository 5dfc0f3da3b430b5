#include "daemon/jobs/read_pace.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace mk::daemon {

bool ReadPace::Keep(uint64_t done, const JobContext& context) {
  constexpr auto kStep = std::chrono::milliseconds(20);
  if (first_) {
    first_ = false;
    begin_ = Clock::now();
    from_ = done;
  }
  while (!context.cancelled()) {
    const uint64_t limit = limit_.load();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    const auto read = static_cast<double>(done - std::min(done, from_));
    if (limit == 0 || read <= seconds * static_cast<double>(limit)) return true;
    std::this_thread::sleep_for(kStep);
  }
  return false;
}

}  // namespace mk::daemon
