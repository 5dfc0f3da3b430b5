// What `mk --help` and the manual say beside the commands.

#pragma once

#include <span>
#include <string>

namespace mk::client {

struct ExitLine {
  int code;
  const char* text;
};

struct EnvironmentLine {
  const char* name;
  const char* text;
};

inline constexpr const char* kPurpose =
    "runs language models through microkimid, a daemon that keeps them warm.";
inline constexpr const char* kClosedPipe = "A closed pipe ends mk quietly, as it ends other tools.";

std::span<const ExitLine> ExitLines();
std::span<const EnvironmentLine> EnvironmentLines();

// The text of `mk --help`.
std::string HelpText();

}  // namespace mk::client
