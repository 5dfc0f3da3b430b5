// ReadPace: holds a job that reads a file to so many bytes per second.

#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/core.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

// Bytes per second that jobs may read; 0: as many as they can. Thread-safe.
using ReadLimit = std::atomic<uint64_t>;

class ReadPace {
 public:
  // `limit` outlives it.
  explicit ReadPace(const ReadLimit& limit) : limit_(limit) {}

  // Waits until `done` bytes may have been read, in short steps. False: the job was cancelled.
  bool Keep(uint64_t done, const JobContext& context);

 private:
  const ReadLimit& limit_;
  bool first_ = true;
  Clock::time_point begin_;
  uint64_t from_ = 0;
};

}  // namespace mk::daemon
