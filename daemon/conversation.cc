#include "daemon/conversation.h"

#include <utility>

#include "daemon/errors.h"

namespace mk::daemon {

protocol::Result<ChatOptions> ChatOptionsOf(const std::string& dialect, bool thinking) {
  ChatOptions options;
  options.thinking = thinking;
  if (dialect.empty()) return options;
  auto parsed = ParseChatDialect(dialect);
  if (!parsed) return protocol::Fail(ToProtocol(parsed.error()));
  options.dialect = *parsed;
  return options;
}

std::vector<ChatMessage> SingleTurn(const std::optional<std::string>& system,
                                    const std::string& text) {
  std::vector<ChatMessage> messages;
  if (system) messages.push_back({ChatRole::kSystem, *system, {}, {}});
  messages.push_back({ChatRole::kUser, text, {}, {}});
  return messages;
}

Result<std::vector<ChatMessage>> Conversation(std::vector<protocol::ConversationMessage> messages) {
  std::vector<ChatMessage> made;
  made.reserve(messages.size());
  for (protocol::ConversationMessage& message : messages) {
    Result<ChatRole> role = ParseChatRole(message.role);
    if (!role) return Fail(role.error());
    made.push_back({*role,
                    std::move(message.content),
                    std::move(message.reasoning),
                    {},
                    std::move(message.ids)});
  }
  return made;
}

}  // namespace mk::daemon
