// What `microkimid --help` and its manual say beside the options.

#pragma once

#include <span>
#include <string>

namespace mk::daemon {

struct HelpLine {
  const char* term;
  const char* text;
};

inline constexpr const char* kPurpose = "holds language models, warm, and serves mk over a socket.";

std::span<const HelpLine> ExampleLines();  // a command, and what it does
std::span<const HelpLine> ExitLines();
std::span<const HelpLine> SignalLines();
std::span<const HelpLine> EnvironmentLines();
std::span<const HelpLine> FileLines();

// What stands below the options in `microkimid --help`.
std::string HelpFooter();
// microkimid(1) in roff, with the man macros.
std::string ManPage();

}  // namespace mk::daemon
