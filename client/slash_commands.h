// What is typed into a chat for mk and not for the model: /help, /undo, /temp 0.7

#pragma once

#include <string>
#include <vector>

#include "client/chat.h"

namespace mk::client {

// A line that begins with '/'; with "//" it is text for the model that begins with one '/'.
bool IsSlashCommand(const std::string& line);
// Runs it; what it says goes to `output`, errors to stderr. `leave`: the chat is over.
TurnEnd RunSlashCommand(const std::string& line, Chat& chat, Output& output);
// What a line that begins with '/' may become: names of commands, or files where one takes a file.
std::vector<std::string> CompleteSlashCommand(const std::string& text);

}  // namespace mk::client
