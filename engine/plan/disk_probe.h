// How fast a disk is for whoever reads experts from it: latency and bandwidth of direct reads.

#pragma once

#include <functional>
#include <string>

#include "engine/base/result.h"
#include "engine/replay/disk_model.h"

namespace mk {

struct DiskProbe {
  DiskTiming timing;
  uint64_t device = 0;  // that the file lies on
  bool direct = true;   // false: the file system has no direct reads, and caches may have helped
};

// Reads at random places of a file, about a second in all: one small read after the other, then
// large ones, `depth` at once. Errors: as OpenForReading, kInvalidArgument for an empty file, kIo,
// kCancelled.
Result<DiskProbe> MeasureDisk(const std::string& path, size_t depth,
                              const std::function<bool()>& go_on = {});

// The same of a file that is made in the folder for that, and removed. Errors also as AtomicFile.
Result<DiskProbe> MeasureDiskOf(const std::string& folder, size_t depth,
                                const std::function<bool()>& go_on = {});

}  // namespace mk
