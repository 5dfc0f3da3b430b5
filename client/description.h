// What a command takes, read from its command line: the source of completions and of the manual is
// that of `--help`.

#pragma once

#include <string>
#include <vector>

#include "cli/option_info.h"
#include "client/commands.h"

namespace mk::client {

using cli::OptionInfo;
using cli::ValueKind;

struct CommandInfo {
  std::string name;
  std::string summary;
  std::vector<std::string> examples;  // lines
  std::vector<OptionInfo> positionals;
  std::vector<OptionInfo> options;
};

// In the order of `mk --help`.
std::vector<CommandInfo> DescribeCommands();

}  // namespace mk::client
