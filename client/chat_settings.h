// The command line of `mk chat`.

#pragma once

#include <optional>
#include <string>

#include "client/chat.h"
#include "client/command_line.h"

namespace mk::client {

struct ChatOptions {
  ChatSettings chat;
  std::optional<std::string> system;
  std::optional<std::string> prompt;  // the only message
  std::string load;                   // transcript to go on with; empty: none
  bool keep_history = true;
  bool commands = false;  // lines of a pipe that begin with '/' are commands
  bool nul = false;       // messages of a pipe end with NUL
};

// Nothing: go on with `options`. Otherwise the exit code; help or an error has been printed.
std::optional<int> ParseChatOptions(const Command& command, int argc, char** argv,
                                    ChatOptions& options);

}  // namespace mk::client
