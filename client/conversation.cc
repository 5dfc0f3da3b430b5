#include "client/conversation.h"

#include <string_view>

namespace mk::client {

using protocol::ConversationMessage;

std::vector<ConversationMessage> Conversation::Messages(
    const std::optional<std::string>& next) const {
  std::vector<ConversationMessage> messages;
  if (system) messages.push_back({"system", *system, {}, {}});
  for (const Turn& turn : turns) {
    if (turn.user) messages.push_back({"user", *turn.user, {}, {}});
    messages.push_back(turn.answer);
  }
  if (next) messages.push_back({"user", *next, {}, {}});
  return messages;
}

std::vector<ConversationMessage> Conversation::PlainMessages(
    const std::optional<std::string>& next) const {
  std::vector<ConversationMessage> messages;
  for (const Turn& turn : turns) {
    if (turn.user) messages.push_back({"user", *turn.user, {}, {}});
    messages.push_back({"assistant", turn.answer.content, {}, turn.answer.ids});
  }
  if (next) messages.push_back({"user", *next, {}, {}});
  return messages;
}

std::string Conversation::Joined(const std::string& next) const {
  constexpr std::string_view kBlanks = " \t\r\n";
  constexpr std::string_view kCling = " \t\r\n.,;:!?)";  // need no blank before them
  std::string_view before;
  if (!turns.empty()) {
    const Turn& last = turns.back();
    before = !last.answer.content.empty() || !last.user ? last.answer.content : *last.user;
  }
  const bool apart = before.empty() || next.empty() ||
                     kBlanks.find(before.back()) != std::string_view::npos ||
                     kCling.find(next.front()) != std::string_view::npos;
  return apart ? next : " " + next;
}

}  // namespace mk::client
