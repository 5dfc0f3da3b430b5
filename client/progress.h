// A line on stderr that shows how far long work has come. Nothing when stderr is no terminal.

#pragma once

#include <string>

#include "client/clock.h"
#include "protocol/messages.h"

namespace mk::client {

class ProgressLine {
 public:
  explicit ProgressLine(bool enabled);
  // Clears the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const protocol::Progress& progress);
  void Clear();

 private:
  const bool enabled_;
  bool shown_ = false;
  std::string stage_;
  Deadline stage_start_;
  Deadline last_drawn_;
};

// "verify   41 %  [########------------]  1.2 GiB of 2.9 GiB, 410 MiB/s, 4 s left"
std::string ProgressText(const protocol::Progress& progress, double seconds);

// "1.5 GiB", "640 KiB", "17 bytes"
std::string BytesText(uint64_t bytes);
// "3 s", "4 min 10 s", "2 h 5 min"
std::string DurationText(double seconds);

}  // namespace mk::client
