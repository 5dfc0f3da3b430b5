// What this process takes from the machine, as the kernel tells it.

#pragma once

#include <cstdint>

namespace mk::daemon {

// 0 for what the kernel does not tell.
struct ProcessUsage {
  double cpu_seconds = 0;       // user and system, all threads
  uint64_t resident_bytes = 0;  // mapped files included
  uint64_t threads = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
};

// Reads a few files in /proc: tens of microseconds, more with thousands of descriptors.
ProcessUsage MeasureProcess();

// resident_bytes alone.
uint64_t ResidentBytes();

}  // namespace mk::daemon
