// mk: asks the daemon. Links no engine and no ZeroMQ, so that a call starts at once.

#include <unistd.h>

#include <exception>
#include <string>
#include <vector>

#include "cli/config_man_page.h"
#include "cli/nearest.h"
#include "client/commands.h"
#include "client/help.h"
#include "client/man_page.h"
#include "client/report.h"
#include "client/signals.h"
#include "client/standard_streams.h"
#include "client/wrapped_help.h"
#include "protocol/error.h"
#include "protocol/version.h"

namespace mk::client {
namespace {

int Print(const std::string& text) {
  Output output(STDOUT_FILENO);
  output.Write(text);
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
  if (name == "--help" || name == "-h" || (name == "help" && argc == 2)) {
    return Print(HelpForOutput(HelpText()));
  }
  // The build writes the manuals with them.
  if (name == "--man") return Print(ManPage());
  if (name == "--man-config") {
    return Print(cli::ConfigManPage(std::string(protocol::Version())));
  }
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
    std::vector<std::string> names = {"help"};
    for (const Command& one : AllCommands()) names.emplace_back(one.name);
    const std::string meant = cli::DidYouMean(name, names);
    return ReportUsage("unknown command \"" + name + "\"",
                       meant.empty() ? "`mk --help` lists the commands" : meant);
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
