// Starting jobs that live on without us: --detach.

#pragma once

#include <vector>

#include "client/command_line.h"
#include "protocol/messages.h"

namespace mk::client {

void AddDetach(CommandLine& line, bool& detach);

// Starts the jobs, prints their ids, one per line, or the jobs as JSON, and returns the exit code.
int StartDetached(const AccessOptions& access, std::vector<protocol::JobSpec> specs, bool json);

}  // namespace mk::client
