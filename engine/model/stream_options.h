// How the routed experts of a model are streamed from its file, and what came of it.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/expert_cache/cache_policy.h"
#include "engine/model/prefetch_source.h"

namespace mk {

// A disk as slow as one likes on top of the real one, for tests and benchmarks. A read is done
// after the latency of a request, and after its bytes and those of the reads before it have gone
// through the bandwidth; latencies of requests that are under way together overlap, up to `depth`
// of them, as on a real device.
struct SlowDiskOptions {
  uint64_t latency_us = 0;
  uint64_t bytes_per_second = 0;  // 0: no limit
  uint32_t depth = 32;            // at least 1
  bool operator==(const SlowDiskOptions&) const = default;
  bool enabled() const { return latency_us > 0 || bytes_per_second > 0; }
};

// How the file is read.
enum class StreamIo : uint8_t {
  kAuto,      // io_uring past the page cache, as far as kernel and file system allow it
  kBuffered,  // io_uring or threads, through the page cache
  kThreads,   // threads that call pread, past the page cache where possible
};

// "auto", "buffered", "threads".
constexpr std::string_view StreamIoName(StreamIo io) {
  constexpr std::string_view kNames[] = {"auto", "buffered", "threads"};
  return kNames[static_cast<size_t>(io)];
}

constexpr std::optional<StreamIo> ParseStreamIo(std::string_view name) {
  for (const StreamIo io : {StreamIo::kAuto, StreamIo::kBuffered, StreamIo::kThreads}) {
    if (StreamIoName(io) == name) return io;
  }
  return std::nullopt;
}

struct StreamOptions {
  // Bytes of memory for experts, buffers of reads included; 0: see LoadOptions::stream_room.
  uint64_t budget = 0;
  CachePolicyKind policy = CachePolicyKind::kAged;
  StreamIo io = StreamIo::kAuto;
  bool fuse = true;     // neighbours in the file share a read
  uint32_t depth = 64;  // reads under way at once
  // Which predictions are used, by source; each also switches itself off where it does not pay.
  std::array<bool, kPrefetchSources> prefetch = {true, true, true, false, false};
  SlowDiskOptions slow_disk;
  // Shadows of all experts, to compute with what is not in memory: the sidecar; empty: none.
  std::string shadows;
  bool operator==(const StreamOptions&) const = default;
};

// What became of the experts that one source had fetched ahead.
struct PrefetchStats {
  uint64_t issued = 0;   // reads that were begun for it
  uint64_t useful = 0;   // in memory when they were needed
  uint64_t late = 0;     // on their way when they were needed
  uint64_t wasted = 0;   // gone before anybody needed them
  uint64_t skipped = 0;  // predictions not followed, as the source did not pay
  bool active = false;   // followed now
};

// Since the model was loaded.
struct StreamStats {
  uint64_t budget = 0;        // bytes
  uint64_t cached_bytes = 0;  // experts in memory
  uint64_t cached_experts = 0;
  uint64_t held_bytes = 0;  // memory of experts and buffers
  uint64_t all_bytes = 0;   // what all experts would take
  uint64_t demands = 0;     // experts that layers asked for: hits + misses + joined + shadowed
  uint64_t hits = 0;
  uint64_t misses = 0;  // read because of the demand
  uint64_t joined = 0;  // on their way already
  uint64_t evictions = 0;
  uint64_t reads = 0;       // requests to the disk
  uint64_t read_bytes = 0;  // with padding and holes
  uint64_t failed_reads = 0;
  uint64_t read_ns = 0;       // sum of the times of reads
  uint64_t stall_ns = 0;      // layers waited so long for experts
  uint64_t shadowed = 0;      // of the demands: served by shadows
  std::string shadow_error;   // why the shadows that are there are not used; empty: no matter
  uint64_t shadow_bytes = 0;  // memory of shadows; 0: there are none
  uint64_t passes = 0;        // over the layers
  bool direct = false;        // past the page cache
  bool uring = false;
  CachePolicyKind policy = CachePolicyKind::kAged;
  std::array<PrefetchStats, kPrefetchSources> prefetch;
};

}  // namespace mk
