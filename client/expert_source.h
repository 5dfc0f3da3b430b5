// Where counts of experts come from: a run of one's own, or all that the daemon has counted.

#pragma once

#include <string>

#include "client/look_run.h"

namespace mk::client {

struct CountedExperts {
  std::string model;        // path
  std::string fingerprint;  // of its file
  std::string about;        // "17 tokens of a run", "12345 tokens since the model was loaded"
  protocol::ExpertTally tally;
};

class ExpertSource {
 public:
  // `max_new`: tokens of a run's answer.
  explicit ExpertSource(uint64_t max_new) : run_(max_new) {}

  // Those of LookRun, --daemon, --reset and those of access.
  void Add(CommandLine& line);
  // After Parse(). Errors: usage.
  protocol::Status Take(CommandLine& line);
  // Errors: the daemon's; kBadRequest when it counts nothing, has counted nothing, or has counted
  // for several models and none is named.
  protocol::Result<CountedExperts> Count(Output& output, bool show_progress) const;

 private:
  protocol::Result<CountedExperts> OfDaemon() const;

  AccessOptions access_;
  LookRun run_;
  bool daemon_ = false;
  bool reset_ = false;
};

}  // namespace mk::client
