// DiskReader: reads of a file that run while somebody else computes.
//
// io_uring where the kernel offers it, else a pool of threads that call pread. One thread submits
// and waits; any thread may wake it. Whoever destroys a reader has waited for all of its reads:
// they write to memory until then.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"

namespace mk {

using StreamClock = std::chrono::steady_clock;

struct DiskRead {
  uint64_t offset = 0;  // in the file
  std::span<std::byte> buffer;
  uint64_t tag = 0;  // comes back with the result
};

struct DiskDone {
  uint64_t tag = 0;
  int error = 0;     // errno, 0: it went well
  size_t bytes = 0;  // read; fewer than asked for are no error
};

class DiskReader {
 public:
  virtual ~DiskReader() = default;
  DiskReader(const DiskReader&) = delete;
  DiskReader& operator=(const DiskReader&) = delete;

  // Reads that may be under way at once. Submit one more, and the behaviour is undefined.
  virtual size_t depth() const = 0;
  // Starts a read of `fd`, which stays open, as does the buffer, until it is done. Never blocks.
  virtual void Submit(int fd, const DiskRead& read) = 0;
  // Appends what is done. Waits for at least one, for Wake, or until `until`.
  virtual void Wait(std::optional<StreamClock::time_point> until, std::vector<DiskDone>& done) = 0;
  // Ends the running Wait, or the next one. Any thread.
  virtual void Wake() = 0;

 protected:
  DiskReader() = default;
};

// kUnsupported where the kernel or a sandbox forbids it; kIo.
Result<std::unique_ptr<DiskReader>> CreateUringReader(size_t depth);
// As many threads as `depth`. kIo when they cannot be started.
Result<std::unique_ptr<DiskReader>> CreatePreadReader(size_t depth);

}  // namespace mk
