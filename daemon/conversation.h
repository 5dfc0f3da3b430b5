// Conversations of requests as the engine's messages.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "protocol/messages.h"

namespace mk::daemon {

// Chat options of a request. Errors: bad_request for a dialect that does not exist.
protocol::Result<ChatOptions> ChatOptionsOf(const std::string& dialect, bool thinking);
// The messages of a single chat turn.
std::vector<ChatMessage> SingleTurn(const std::optional<std::string>& system,
                                    const std::string& text);
// Errors: kInvalidArgument, kUnsupported for a role.
Result<std::vector<ChatMessage>> Conversation(std::vector<protocol::ConversationMessage> messages);

}  // namespace mk::daemon
