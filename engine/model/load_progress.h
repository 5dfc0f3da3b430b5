// LoadProgress: bytes read so far by the workers of a load, and the caller's wish to stop.
//
// The callback runs on worker 0, which is the thread that called LoadModel.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "engine/base/result.h"

namespace mk {

class LoadProgress {
 public:
  LoadProgress(std::function<bool(double)> callback, uint64_t total_bytes, std::string path)
      : callback_(std::move(callback)),
        total_(std::max<uint64_t>(total_bytes, 1)),
        path_(std::move(path)) {}

  // Counts bytes; kCancelled once the callback has returned false.
  Status Add(uint64_t bytes, size_t worker) {
    const uint64_t done = done_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    return Report(std::min(static_cast<double>(done) / static_cast<double>(total_), 1.0), worker);
  }

  // Reports 1. On the loading thread, after everything was read.
  Status Finish() { return Report(1.0, 0); }

 private:
  Status Report(double share, size_t worker) {
    if (worker == 0 && callback_ && !cancelled_.load(std::memory_order_relaxed)) {
      if (!callback_(share)) cancelled_.store(true, std::memory_order_relaxed);
    }
    if (cancelled_.load(std::memory_order_relaxed)) {
      return Fail(ErrorCode::kCancelled, "loading " + path_ + " was cancelled");
    }
    return {};
  }

  std::function<bool(double)> callback_;
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> cancelled_{false};
  uint64_t total_;
  std::string path_;
};

}  // namespace mk
