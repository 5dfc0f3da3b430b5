// The manual of mk.

#pragma once

#include <string>

namespace mk::client {

// mk(1) in roff, with the man macros: every command and option, exit codes and environment, from
// the source of `--help`.
std::string ManPage();

}  // namespace mk::client
