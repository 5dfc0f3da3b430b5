// The folder of what mk keeps between calls: $XDG_STATE_HOME/microkimi.

#pragma once

#include <string>

#include "protocol/error.h"

namespace mk::client {

// Makes an absolute folder, and its parents, with mode 0700 where they are missing. Errors:
// kIoError, kPermissionDenied.
protocol::Status MakeFolders(const std::string& folder);

// Its path; made with mode 0700 (parents too) if it is missing. Errors: kIoError,
// kPermissionDenied, kBadRequest when no variable tells where it is.
protocol::Result<std::string> MakeStateFolder();

}  // namespace mk::client
