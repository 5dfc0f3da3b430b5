// What a command takes, read from its command line: the source of completions and of the manual is
// that of `--help`.

#pragma once

#include <string>
#include <vector>

#include "client/commands.h"

namespace mk::client {

enum class ValueKind {
  kNone,    // a flag
  kAny,     // nothing is known of the value
  kChoice,  // one of `choices`
  kFile,
  kModel,
};

struct OptionInfo {
  std::vector<std::string> names;  // "-n", "--max-new"; of a positional: "FILE"
  std::string value;               // "N", "FILE"; empty: a flag
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> choices;
  std::string doc;
  bool positional = false;
  bool required = false;
  bool many = false;  // may be given several times
};

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
