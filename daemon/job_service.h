// verify and build: long work, one at a time, at low priority beside the streams.

#pragma once

#include "daemon/core.h"

namespace mk::daemon {

class JobService {
 public:
  explicit JobService(Core& core) : core_(core) {}

  void HandleVerify(ClientRequest& request);
  void HandleBuild(ClientRequest& request);

 private:
  // Reports 0..1 as progress of the request; false when it was cancelled.
  using Report = std::function<bool(double fraction)>;
  using Work = std::function<protocol::Result<protocol::Body>(const Report& report)>;
  void Post(ClientRequest& request, protocol::Progress progress, Work work);

  Core& core_;
};

}  // namespace mk::daemon
