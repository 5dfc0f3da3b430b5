// What an option takes, read from the command line itself: the source of completions and of the
// manuals is that of `--help`.

#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mk::cli {

enum class ValueKind {
  kNone,    // a flag
  kAny,     // nothing is known of the value
  kChoice,  // one of `choices`
  kFile,
  kModel,
  kJob,      // id of a job
  kSession,  // name of a session
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

OptionInfo DescribeOption(const CLI::Option& option);

}  // namespace mk::cli
