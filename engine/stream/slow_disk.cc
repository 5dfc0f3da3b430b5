#include "engine/stream/slow_disk.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace mk {
namespace {

class SlowDisk final : public DiskReader {
 public:
  SlowDisk(std::unique_ptr<DiskReader> disk, const SlowDiskOptions& options)
      : disk_(std::move(disk)), options_(options), slots_(std::max<size_t>(1, options.depth)) {}

  size_t depth() const override { return disk_->depth(); }

  void Submit(int fd, const DiskRead& read) override {
    due_.push_back({read.tag, DueTime(read.buffer.size())});
    disk_->Submit(fd, read);
  }

  void Wait(std::optional<StreamClock::time_point> until, std::vector<DiskDone>& done) override {
    std::optional<StreamClock::time_point> wake = until;
    if (!held_.empty()) wake = wake ? std::min(*wake, held_.top().time) : held_.top().time;
    arrived_.clear();
    disk_->Wait(wake, arrived_);
    for (const DiskDone& one : arrived_) Hold(one);
    const auto now = StreamClock::now();
    while (!held_.empty() && held_.top().time <= now) {
      done.push_back(held_.top().done);
      held_.pop();
    }
  }

  void Wake() override { disk_->Wake(); }

 private:
  struct Due {
    uint64_t tag;
    StreamClock::time_point time;
  };
  struct Held {
    StreamClock::time_point time;
    DiskDone done;
    bool operator>(const Held& other) const { return time > other.time; }
  };

  // When a read that is submitted now is done: a slot of the disk is free, the latency over, and
  // its bytes are through.
  StreamClock::time_point DueTime(size_t bytes) {
    const auto slot = std::min_element(slots_.begin(), slots_.end());
    const auto start = std::max(StreamClock::now(), *slot);
    const auto latency = std::chrono::microseconds(options_.latency_us);
    uint64_t transfer_ns = 0;
    if (options_.bytes_per_second > 0) {
      transfer_ns = static_cast<uint64_t>(static_cast<double>(bytes) * 1e9 /
                                          static_cast<double>(options_.bytes_per_second));
    }
    line_free_ = std::max(line_free_, start + latency) + std::chrono::nanoseconds(transfer_ns);
    *slot = line_free_;
    return line_free_;
  }

  void Hold(const DiskDone& done) {
    const auto due =
        std::find_if(due_.begin(), due_.end(), [&](const Due& one) { return one.tag == done.tag; });
    held_.push({due->time, done});
    *due = due_.back();
    due_.pop_back();
  }

  std::unique_ptr<DiskReader> disk_;
  const SlowDiskOptions options_;
  std::vector<StreamClock::time_point> slots_;  // when each of them is free again
  StreamClock::time_point line_free_{};
  std::vector<Due> due_;  // of reads under way below
  std::priority_queue<Held, std::vector<Held>, std::greater<>> held_;
  std::vector<DiskDone> arrived_;
};

}  // namespace

std::unique_ptr<DiskReader> CreateSlowDisk(std::unique_ptr<DiskReader> disk,
                                           const SlowDiskOptions& options) {
  return std::make_unique<SlowDisk>(std::move(disk), options);
}

}  // namespace mk
