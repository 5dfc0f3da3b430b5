#include "client/help.h"

#include <cstring>

#include "client/commands.h"
#include "protocol/error.h"

namespace mk::client {
namespace {

constexpr ExitLine kExitLines[] = {
    {protocol::kExitDone, "done"},
    {protocol::kExitFailed, "failed"},
    {protocol::kExitUsage, "the command line or the request is wrong"},
    {protocol::kExitUnreachable, "no daemon, or it could not start"},
    {protocol::kExitDegraded, "finished, but degraded: not with the whole model"},
    {protocol::kExitVersion, "mk and the daemon are of different versions (`mk restart` mends it)"},
    {protocol::kExitBusy, "busy: too many requests, or the thing is in use"},
    {protocol::kExitNotFound, "not found"},
    {protocol::kExitDeadline, "the deadline passed"},
    {protocol::kExitInterrupted, "interrupted"},
};

constexpr EnvironmentLine kEnvironment[] = {
    {"MICROKIMI_SOCKET",
     "socket of the daemon (default $XDG_RUNTIME_DIR/microkimi/microkimid.sock)"},
    {"MICROKIMI_DAEMON", "program to start when no daemon runs (default: microkimid beside mk)"},
    {"NO_COLOR", "no colours and no progress lines"},
};

std::string FirstLine(const char* text) {
  return std::string(text, std::strcspn(text, "\n"));
}

std::string Padded(std::string text, size_t width) {
  text.resize(width, ' ');
  return text;
}

}  // namespace

std::span<const ExitLine> ExitLines() {
  return kExitLines;
}

std::span<const EnvironmentLine> EnvironmentLines() {
  return kEnvironment;
}

std::string HelpText() {
  std::string text =
      std::string("mk: ") + kPurpose + "\n\n" + "Usage: mk COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : AllCommands()) {
    text += "  " + Padded(command.name, 12) + command.summary + "\n";
  }
  text += "\n`mk COMMAND --help` shows the options of a command.\n\nExamples:\n";
  for (const Command& command : AllCommands()) text += FirstLine(command.examples) + "\n";
  text += "\nExit codes:\n";
  for (const ExitLine& line : kExitLines) {
    text += "  " + Padded(std::to_string(line.code), 5) + line.text + "\n";
  }
  text += std::string(kClosedPipe) + "\n\nEnvironment:\n";
  for (const EnvironmentLine& line : kEnvironment) {
    text += "  " + Padded(line.name, 18) + line.text + "\n";
  }
  return text;
}

}  // namespace mk::client
