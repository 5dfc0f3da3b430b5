// `mk completions`

#include <unistd.h>

#include "client/commands.h"
#include "client/completion_scripts.h"
#include "client/report.h"

namespace mk::client {

int CompletionsCommand(const Command& command, int argc, char** argv) {
  std::string shell;
  CommandLine line(command);
  line.app()
      .add_option("SHELL", shell, "bash, zsh or fish")
      ->required()
      ->check(OneOf({"bash", "zsh", "fish"}));
  if (auto code = line.Parse(argc, argv)) return *code;
  const std::vector<CommandInfo> commands = DescribeCommands();
  Output output(STDOUT_FILENO);
  if (shell == "bash") output.Write(BashCompletions(commands));
  if (shell == "zsh") output.Write(ZshCompletions(commands));
  if (shell == "fish") output.Write(FishCompletions(commands));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
