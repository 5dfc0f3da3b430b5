// The engine's errors in the protocol's words.

#pragma once

#include "engine/base/error.h"
#include "protocol/error.h"

namespace mk::daemon {

protocol::Error ToProtocol(const Error& error);
// The same for an error about a model file: a missing one is model_not_found.
protocol::Error ToModelError(const Error& error);
// The same for an error about a memory pack.
protocol::Error ToPackError(const Error& error);

}  // namespace mk::daemon
