// SpineWriter: keeps a spine on a thread of its own, at the lowest priority of processor and disk,
// while the model is in use already.

#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <thread>

#include "engine/format/spine_cache.h"

namespace mk {

class SpineWriter {
 public:
  // Begins at once; nothing happens when the system refuses a thread. `spine` must outlive the
  // writer.
  SpineWriter(SpineCacheOptions options, SpineKey key, std::span<const std::byte> spine);
  // Gives up what is not written yet, and waits for the thread: as long as the disk takes for 64
  // MiB at most.
  ~SpineWriter();
  SpineWriter(const SpineWriter&) = delete;
  SpineWriter& operator=(const SpineWriter&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace mk
