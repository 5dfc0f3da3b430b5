// The command line of `mk run`.

#pragma once

#include <optional>
#include <string>

#include "client/access.h"
#include "client/command_line.h"
#include "client/look_options.h"
#include "protocol/messages.h"

namespace mk::client {

enum class RunFormat {
  kText,        // the answer as it comes
  kJson,        // one object at the end
  kStreamJson,  // one object per reply
};

struct RunSettings {
  AccessOptions access;
  protocol::RunArgs args;
  RunFormat format = RunFormat::kText;
  bool stats = false;
  bool allow_degraded = false;
  std::string dump_logits;  // files; empty: none
  std::string dump_hidden;
  bool routes = false;  // in JSON
  LookSettings looks;
};

// Nothing: go on with `options`. Otherwise the exit code; help or an error has been printed.
// Reads the prompt.
std::optional<int> ParseRunSettings(const Command& command, int argc, char** argv,
                                    RunSettings& options);

}  // namespace mk::client
