// The folder of what mk keeps between calls: $XDG_STATE_HOME/microkimi.

#pragma once

#include <string>

#include "protocol/error.h"

namespace mk::client {

// Its path; made with mode 0700 (parents too) if it is missing. Errors: kIoError,
// kPermissionDenied, kBadRequest when no variable tells where it is.
protocol::Result<std::string> MakeStateFolder();

}  // namespace mk::client
