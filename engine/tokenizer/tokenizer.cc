#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

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
  if (name == "dsv4") return ChatDialect::kDsv4;
  return Fail(ErrorCode::kInvalidArgument, "unknown chat dialect \"" + std::string(name) + "\"",
              "use k3, nano-sft or dsv4");
}

std::string_view ChatDialectName(ChatDialect dialect) {
  switch (dialect) {
    case ChatDialect::kK3:
      return "k3";
    case ChatDialect::kNanoSft:
      return "nano-sft";
    case ChatDialect::kDsv4:
      return "dsv4";
  }
  return "";
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

namespace {

tl::unexpected<Error> BadMessage(size_t index, const std::string& why, std::string hint) {
  return Fail(ErrorCode::kInvalidArgument, "message " + std::to_string(index + 1) + ": " + why,
              std::move(hint));
}

bool InVocabulary(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  return std::all_of(ids.begin(), ids.end(), [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size();
  });
}

}  // namespace

Result<EncodedText> RenderContinuousText(const Tokenizer& tokenizer,
                                         std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the conversation has no messages",
                "give at least one user message");
  }
  Result<EncodedText> text = tokenizer.EncodePrompt("");
  for (size_t i = 0; i < messages.size() && text; ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == ChatRole::kSystem || !message.reasoning.empty() || !message.name.empty()) {
      return BadMessage(i, "plain text has no system messages, reasoning and names",
                        "leave them out, or name a chat template");
    }
    if (message.role == ChatRole::kAssistant && !message.ids.empty() &&
        InVocabulary(tokenizer, message.ids) && tokenizer.Decode(message.ids) == message.content) {
      text->ids.insert(text->ids.end(), message.ids.begin(), message.ids.end());
      continue;
    }
    Result<EncodedText> piece = tokenizer.EncodeText(message.content);
    if (!piece) return BadMessage(i, piece.error().message, piece.error().hint);
    text->ids.insert(text->ids.end(), piece->ids.begin(), piece->ids.end());
    text->unknown += piece->unknown;
  }
  return text;
}

}  // namespace mk
