// pck_info and pck_clean: the prefix cache as its user sees it, and forgetting it.

#pragma once

#include <cstdint>
#include <string>

#include "daemon/core.h"

namespace mk::daemon {

class PrefixService {
 public:
  explicit PrefixService(Core& core) : core_(core) {}

  // From memory alone.
  void HandleInfo(const std::string& peer, uint64_t id, const protocol::PckInfoArgs& args);
  // In memory at once, then on disk, on the thread that writes there: what waits to be written
  // before it finds nothing any more.
  void HandleClean(ClientRequest& request);

 private:
  Core& core_;
};

}  // namespace mk::daemon
