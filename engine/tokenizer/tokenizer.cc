#include "engine/tokenizer/tokenizer.h"

#include "engine/tokenizer/utf8_stream.h"

namespace mk {

Result<ChatRole> ParseChatRole(std::string_view name) {
  if (name == "system") return ChatRole::kSystem;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "tool") {
    return Fail(ErrorCode::kUnsupported, "messages of the role \"tool\" are not supported",
                "put the result into a user message");
  }
  return Fail(ErrorCode::kInvalidArgument, "unknown role \"" + std::string(name) + "\"",
              "use system, user or assistant");
}

std::string_view ChatRoleName(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
  }
  return "";
}

Result<ChatDialect> ParseChatDialect(std::string_view name) {
  if (name == "k3") return ChatDialect::kK3;
  if (name == "nano-sft") return ChatDialect::kNanoSft;
  return Fail(ErrorCode::kInvalidArgument, "unknown chat dialect \"" + std::string(name) + "\"",
              "use k3 or nano-sft");
}

std::string_view ChatDialectName(ChatDialect dialect) {
  return dialect == ChatDialect::kK3 ? "k3" : "nano-sft";
}

std::string_view ChannelName(Channel channel) {
  switch (channel) {
    case Channel::kAnswer:
      return "answer";
    case Channel::kReasoning:
      return "reasoning";
    case Channel::kHidden:
      return "hidden";
  }
  return "";
}

std::string Tokenizer::Decode(std::span<const int32_t> ids) const {
  Utf8Stream stream;
  std::string text;
  for (const int32_t id : ids) {
    const std::string_view bytes = TokenBytes(id);
    text += bytes.empty() ? stream.Break() : stream.Push(bytes);
  }
  return text + stream.Break();
}

}  // namespace mk
