// mk: asks the daemon. Links no engine and no ZeroMQ, so that a call starts at once.

#include <unistd.h>

#include <cstring>
#include <exception>
#include <string>

#include "client/commands.h"
#include "client/report.h"
#include "client/signals.h"
#include "client/standard_streams.h"
#include "protocol/error.h"

namespace mk::client {
namespace {

struct ExitLine {
  int code;
  const char* text;
};

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

std::string FirstLine(const char* text) {
  return std::string(text, std::strcspn(text, "\n"));
}

std::string HelpText() {
  std::string text =
      "mk: runs language models through microkimid, a daemon that keeps them warm.\n\n"
      "Usage: mk COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : AllCommands()) {
    std::string name = command.name;
    name.resize(12, ' ');
    text += "  " + name + command.summary + "\n";
  }
  text += "\n`mk COMMAND --help` shows the options of a command.\n\nExamples:\n";
  for (const Command& command : AllCommands()) text += FirstLine(command.examples) + "\n";
  text += "\nExit codes:\n";
  for (const ExitLine& line : kExitLines) {
    std::string code = std::to_string(line.code);
    code.resize(5, ' ');
    text += "  " + code + line.text + "\n";
  }
  text +=
      "A closed pipe ends mk quietly, as it ends other tools.\n\n"
      "Environment:\n"
      "  MICROKIMI_SOCKET  socket of the daemon (default "
      "$XDG_RUNTIME_DIR/microkimi/microkimid.sock)\n"
      "  MICROKIMI_DAEMON  program to start when no daemon runs (default: microkimid beside mk)\n"
      "  NO_COLOR          no colours and no progress lines\n";
  return text;
}

int Help() {
  Output output(STDOUT_FILENO);
  output.Write(HelpText());
  return FinishOutput(output, protocol::kExitDone);
}

const Command* FindCommand(const std::string& name) {
  for (const Command& command : AllCommands()) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

int Main(int argc, char** argv) {
  OccupyClosedStreams();
  IgnoreBrokenPipes();
  std::string name = argc > 1 ? argv[1] : "";
  if (name == "--version" || name == "-V") name = "version";
  if (name == "--help" || name == "-h" || (name == "help" && argc == 2)) return Help();
  if (name.empty()) return ReportUsage("no command is given", "`mk --help` lists them");
  if (name == "help") {
    const Command* command = FindCommand(argv[2]);
    std::string help = "--help";
    char* arguments[] = {argv[2], help.data(), nullptr};
    if (command != nullptr) return command->run(*command, 2, arguments);
    name = argv[2];
  }
  const Command* command = FindCommand(name);
  if (command == nullptr) {
    return ReportUsage("unknown command \"" + name + "\"", "`mk --help` lists the commands");
  }
  return command->run(*command, argc - 1, argv + 1);
}

}  // namespace
}  // namespace mk::client

int main(int argc, char** argv) {
  try {
    return mk::client::Main(argc, argv);
  } catch (const std::exception& error) {
    return mk::client::ReportError(
        {mk::protocol::ErrorCode::kInternal, std::string("mk failed: ") + error.what(), {}, {}});
  }
}
