// expert_stats: how often experts were picked since their model was loaded.

#pragma once

#include <cstdint>
#include <string>

#include "daemon/core.h"

namespace mk::daemon {

class LookService {
 public:
  explicit LookService(Core& core) : core_(core) {}

  void HandleExpertStats(const std::string& peer, uint64_t id,
                         const protocol::ExpertStatsArgs& args);

 private:
  protocol::Result<protocol::Body> ExpertStats(const protocol::ExpertStatsArgs& args);

  Core& core_;
};

}  // namespace mk::daemon
