// What was said in a chat, turn by turn.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/messages.h"

namespace mk::client {

struct Turn {
  std::optional<std::string> user;       // nothing: the answer before was gone on with
  protocol::ConversationMessage answer;  // role "assistant"
};

struct Conversation {
  std::optional<std::string> system;
  std::vector<Turn> turns;

  // As a chat prompt has them, with what the user says next.
  std::vector<protocol::ConversationMessage> Messages(const std::optional<std::string>& next) const;
  // As one text that goes on: nothing but what the user and the model wrote.
  std::vector<protocol::ConversationMessage> PlainMessages(
      const std::optional<std::string>& next) const;

  // The text as the next part of PlainMessages(): behind a blank, if without one a word would run
  // into the word before it.
  std::string Joined(const std::string& next) const;
};

}  // namespace mk::client
