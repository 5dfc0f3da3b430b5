// Experts that stay in the file of a model. Included by messages.h.

#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace mk::protocol {

// How a model is loaded if it is not loaded yet.
struct StreamWish {
  // "on": leave the routed experts in the file and keep what fits into a budget; "off": read all of
  // them into memory; "auto": what does not fit into the daemon's memory is streamed; "": the
  // daemon's setting.
  std::string stream;
  uint64_t stream_memory = 0;  // bytes for experts; 0: what is free. Implies "on"
  bool operator==(const StreamWish&) const = default;
};

// What became of the experts that one kind of prediction had read ahead.
struct PrefetchStatus {
  uint64_t issued = 0;   // reads that were begun for it
  uint64_t useful = 0;   // in memory when they were needed
  uint64_t late = 0;     // on their way when they were needed
  uint64_t wasted = 0;   // gone before anybody needed them
  uint64_t skipped = 0;  // predictions not followed, as they did not pay
  bool active = false;   // followed now
  bool operator==(const PrefetchStatus&) const = default;
};

// Of a model whose experts are streamed, since it was loaded.
struct StreamStatus {
  uint64_t budget = 0;  // bytes
  uint64_t cached_bytes = 0;
  uint64_t cached_experts = 0;
  uint64_t all_bytes = 0;  // that all experts would take
  uint64_t demands = 0;    // experts that layers asked for: hits + misses + joined + shadowed
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t joined = 0;  // on their way already
  uint64_t evictions = 0;
  uint64_t reads = 0;  // requests to the disk
  uint64_t read_bytes = 0;
  uint64_t failed_reads = 0;
  double read_ms = 0;         // of a read, on average
  double stall_ms = 0;        // that layers waited for experts, altogether
  uint64_t passes = 0;        // over the layers
  uint64_t shadowed = 0;      // of the demands: served by shadows
  uint64_t shadow_bytes = 0;  // memory of shadows, beside the budget; 0: there are none
  std::string policy;         // "lru", "lfu", "arc", "aged"
  std::string io;             // "io_uring", "threads"; with ", direct" past the page cache
  std::map<std::string, PrefetchStatus> prefetch;  // by kind of prediction
  bool operator==(const StreamStatus&) const = default;
};

// Of a run on a streamed model, with what others did on it meanwhile.
struct StreamUse {
  uint64_t demands = 0;
  uint64_t hits = 0;
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
  double stall_ms = 0;
  bool operator==(const StreamUse&) const = default;
};

}  // namespace mk::protocol
