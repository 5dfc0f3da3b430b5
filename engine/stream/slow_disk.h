// SlowDisk: a disk as slow as one likes, on top of a fast one.
//
// For tests and benchmarks, so that what they measure does not depend on the page cache of the
// machine. What it is like: SlowDiskOptions.

#pragma once

#include <memory>

#include "engine/model/stream_options.h"
#include "engine/stream/disk_reader.h"

namespace mk {

// `disk` does the reads.
std::unique_ptr<DiskReader> CreateSlowDisk(std::unique_ptr<DiskReader> disk,
                                           const SlowDiskOptions& options);

}  // namespace mk
