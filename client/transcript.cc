#include "client/transcript.h"

#include <sys/stat.h>

#include <array>
#include <ctime>

#include "client/atomic_write.h"
#include "client/input.h"
#include "client/json_read.h"
#include "protocol/request_fields.h"

namespace mk::client {
namespace {

using protocol::ConversationMessage;
using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

constexpr const char* kFormat = "microkimi-chat-1";

tl::unexpected<protocol::Error> NoTranscript(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kIncompatible, path + " is no transcript of a chat: " + why,
              "name a file that /save or --save has written");
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

Json MessageJson(const ConversationMessage& message) {
  Json json = ToJson(message);
  if (message.reasoning.empty()) json.erase("reasoning");
  if (message.ids.empty()) json.erase("ids");
  return json;
}

// The object of a file's text. Errors: kIncompatible.
Result<Json> ParseTranscript(const std::string& path, const std::string& text) {
  if (JsonDepth(text) > protocol::kLimits.depth) return NoTranscript(path, "it is nested too deep");
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return NoTranscript(path, "it is not a JSON object");
  const auto format = json.find("format");
  if (format == json.end() || !format->is_string())
    return NoTranscript(path, "it has no \"format\"");
  if (*format != kFormat) {
    return NoTranscript(path, "its format is \"" + format->get<std::string>().substr(0, 40) +
                                  "\", not \"" + kFormat + "\"");
  }
  return json;
}

// Why the messages do not make a conversation; empty when they do.
std::string TakeMessages(std::vector<ConversationMessage> messages, Conversation& conversation) {
  std::optional<std::string> user;
  for (size_t i = 0; i < messages.size(); ++i) {
    ConversationMessage& message = messages[i];
    const std::string where = "message " + std::to_string(i + 1);
    const bool answer = message.role == "assistant";
    if (!answer && (!message.reasoning.empty() || !message.ids.empty())) {
      return where + " has \"reasoning\" or \"ids\", but is no answer";
    }
    if (message.role == "system") {
      if (i != 0) return where + " is of the system, but not the first";
      conversation.system = std::move(message.content);
    } else if (message.role == "user") {
      if (user) return where + " follows one of the user without an answer between them";
      user = std::move(message.content);
    } else if (!answer) {
      return where + " has an unknown role \"" + message.role.substr(0, 40) + "\"";
    } else {
      if (!user && conversation.turns.empty()) return where + " answers nothing";
      conversation.turns.push_back({std::move(user), std::move(message)});
      user.reset();
    }
  }
  return user ? "the last message has no answer" : "";
}

// A file that is there may be replaced when it is a transcript.
Status MayReplace(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || info.st_size == 0) return {};
  if (!S_ISREG(info.st_mode)) return {};  // the writer refuses it
  Result<Conversation> old = LoadTranscript(path);
  if (old || old.error().code != ErrorCode::kIncompatible) return {};
  return Fail(ErrorCode::kIncompatible, "not saved: " + old.error().message,
              "name another file, or remove this one");
}

}  // namespace

Status SaveTranscript(const std::string& path, const Conversation& conversation,
                      const std::optional<TranscriptOrigin>& origin) {
  if (Status may = MayReplace(path); !may) return may;
  Json json = {{"format", kFormat}, {"saved", Now()}};
  if (origin) {
    json["model"] = origin->trust.model_path;
    json["fingerprint"] = origin->trust.fingerprint;
    json["options"] = ToJson(origin->options);
  }
  json["messages"] = Json::array();
  for (const ConversationMessage& message : conversation.Messages(std::nullopt)) {
    json["messages"].push_back(MessageJson(message));
  }
  return WriteFileAtomically(path, JsonLine(json));
}

Result<Conversation> LoadTranscript(const std::string& path) {
  Result<std::string> text = ReadWholeFile(path, protocol::kLimits.message_bytes);
  if (!text) return Fail(std::move(text.error()));
  Result<Json> json = ParseTranscript(path, *text);
  if (!json) return Fail(std::move(json.error()));
  std::vector<ConversationMessage> messages;
  const auto found = json->find("messages");
  if (found == json->end() || !Assign(*found, messages)) {
    return NoTranscript(path, "\"messages\" is no list of messages");
  }
  Conversation conversation;
  const std::string wrong = TakeMessages(std::move(messages), conversation);
  if (!wrong.empty()) return NoTranscript(path, wrong);
  return conversation;
}

}  // namespace mk::client
