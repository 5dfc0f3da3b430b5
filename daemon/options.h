// Command line of microkimid.

#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "cli/option_info.h"
#include "daemon/config.h"

namespace mk::daemon {

struct Options {
  std::string socket;       // absolute; empty: MICROKIMI_SOCKET, else the user's default
  std::string config_file;  // absolute
  bool foreground = false;
  int ready_fd = -1;
  // What overrides the config file.
  std::map<const cli::ConfigKey*, cli::ConfigValue> overrides;
};

// The options, or the exit code after --help, --version or a bad command line; what there is to
// say has been printed then.
std::variant<Options, int> ParseOptions(int argc, const char* const* argv,
                                        const std::string& version);

// In the order of --help.
std::vector<cli::OptionInfo> DescribeOptions();

// The config with what the command line overrides.
Config WithOverrides(Config config, const Options& options);

}  // namespace mk::daemon
