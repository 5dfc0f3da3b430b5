// Another program, run to its end, with what it said.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/clock.h"
#include "protocol/error.h"

namespace mk::client {

struct ProgramEnd {
  int code = 0;     // of its exit; 128 + the signal that ended it
  std::string out;  // of each at most a mebibyte; the rest is read and dropped
  std::string err;
};

// Runs `command` (a name without '/' is looked for in PATH) with no input, and with these variables
// beside its own environment. Errors: kNotFound when there is no such program, kTimeout when it has
// not ended by then (it is killed), kIoError.
protocol::Result<ProgramEnd> RunProgram(const std::vector<std::string>& command,
                                        const std::map<std::string, std::string>& variables,
                                        Deadline deadline);

}  // namespace mk::client
