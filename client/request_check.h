// The daemon's own rules for a request, before it is sent.

#pragma once

#include "protocol/messages.h"

namespace mk::client {

// Errors: as the daemon would refuse it.
protocol::Status CheckRequest(const protocol::Args& args);

}  // namespace mk::client
