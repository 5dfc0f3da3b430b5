// A conversation as a file: one JSON object.
//
//   {"format": "microkimi-chat-1", "saved": "2026-01-31T12:00:00Z", "model": path, "fingerprint":
//   hex,
//    "options": {of the last answer}, "messages": [{"role", "content", "reasoning", "ids"}, ...]}
//
// Only format and messages are read: an optional system message, then user messages, each followed
// by an answer (in plain text, by one or more).

#pragma once

#include <optional>
#include <string>

#include "client/conversation.h"

namespace mk::client {

struct TranscriptOrigin {
  protocol::Trust trust;
  protocol::RunOptions options;
};

// Replaces the file at once or not at all; it is ours alone (mode 0600). A file that is there and
// is no transcript is left alone. Errors: kIoError, kPermissionDenied, kIncompatible.
protocol::Status SaveTranscript(const std::string& path, const Conversation& conversation,
                                const std::optional<TranscriptOrigin>& origin);

// Errors: kNotFound, kIoError, kPermissionDenied, kIncompatible for what is no transcript.
protocol::Result<Conversation> LoadTranscript(const std::string& path);

}  // namespace mk::client
