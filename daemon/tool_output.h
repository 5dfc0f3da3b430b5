// What the tools of the daemon's program (`microkimid pack` and the like) print, in the way of mk.

#pragma once

#include <string>

#include "engine/base/error.h"

namespace mk::daemon {

// Writes to standard output. Returns the exit code.
int PrintOut(const std::string& text);

// Says on standard error what is wrong. Returns the exit code of the error.
int ReportFailure(const Error& error);

}  // namespace mk::daemon
