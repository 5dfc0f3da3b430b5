// DiskModel: when reads are done on a disk of a given latency, bandwidth and queue.
//
// A read waits for a free place in the queue, then for the latency, which reads in the queue share,
// then for its bytes, which come one read after the other. Seconds on a clock of the caller's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace mk {

struct DiskTiming {
  double latency_s = 100e-6;
  double bytes_per_s = 2e9;  // above 0
  size_t depth = 32;         // reads at once, at least 1

  bool operator==(const DiskTiming&) const = default;
};

class DiskModel {
 public:
  explicit DiskModel(const DiskTiming& timing) : timing_(timing) {}

  // When a read would begin that is submitted at `now`.
  double Begin(double now) const;
  // Submits a read of so many bytes, no earlier than the one before it. Returns when it is done.
  double Read(double now, uint64_t bytes);

 private:
  DiskTiming timing_;
  // When the reads under way are done, the first to end on top; no more than fit the queue.
  std::priority_queue<double, std::vector<double>, std::greater<>> ends_;
  double pipe_free_ = 0;
};

}  // namespace mk
