// How far `mk map` has come: a line on a terminal while it runs, and the sum at the end.

#pragma once

#include <cstdint>
#include <string>

#include "client/clock.h"

namespace mk::client {

struct MapCounts {
  uint64_t read = 0;  // items taken from the input
  uint64_t done = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t degraded = 0;
  uint64_t tokens = 0;  // generated
  bool all_read = false;
  double input_part = -1;  // of the input that was read, 0..1; below 0: not known
  uint64_t ended() const { return done + failed + cancelled; }
};

class MapProgress {
 public:
  explicit MapProgress(bool enabled) : enabled_(enabled), start_(Clock::now()) {}
  ~MapProgress() { Clear(); }
  MapProgress(const MapProgress&) = delete;
  MapProgress& operator=(const MapProgress&) = delete;

  // Draws when it is enabled and the last time is some time ago.
  void Show(const MapCounts& counts);
  void Clear();
  bool enabled() const { return enabled_; }
  double seconds() const;

 private:
  const bool enabled_;
  const Deadline start_;
  Deadline drawn_{};
  bool shown_ = false;
};

// "120 of 300 items, 2 failed, 812 tok/s"; while the input is read, "120 items, 41 % of the input".
std::string MapProgressText(const MapCounts& counts, double seconds);
// "[300 items, 2 failed; 9120 tokens, 812 tok/s, 11.2 s]\n"
std::string MapSummaryText(const MapCounts& counts, double seconds);

}  // namespace mk::client
