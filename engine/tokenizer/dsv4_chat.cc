#include "engine/tokenizer/dsv4_chat.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

using Ids = std::span<const int32_t>;

// Gathers text until a mark comes: text without a mark between is encoded as one.
class Writer {
 public:
  explicit Writer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Text(std::string_view text) { pending_ += text; }
  void Mark(int32_t id) { Append({&id, 1}); }
  void Append(Ids ids) {
    Flush();
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
  }
  Result<EncodedText> Take() {
    Flush();
    if (!status_) return Fail(status_.error());
    return std::move(out_);
  }

 private:
  void Flush() {
    if (pending_.empty() || !status_) return;
    Result<EncodedText> piece = tokenizer_.EncodeText(pending_);
    pending_.clear();
    if (!piece) {
      status_ = Fail(piece.error());
      return;
    }
    out_.ids.insert(out_.ids.end(), piece->ids.begin(), piece->ids.end());
    out_.unknown += piece->unknown;
  }

  const Tokenizer& tokenizer_;
  std::string pending_;
  EncodedText out_;
  Status status_;
};

Status CheckMessage(const ChatMessage& message) {
  const bool assistant = message.role == ChatRole::kAssistant;
  const std::string role(ChatRoleName(message.role));
  if (!message.name.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "messages have no name in the template dsv4",
                "leave \"name\" out");
  }
  if (!assistant && !message.reasoning.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a " + role + " message cannot have reasoning",
                "leave \"reasoning\" out");
  }
  if (!assistant && !message.ids.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a " + role + " message cannot have generated ids",
                "leave \"ids\" out");
  }
  for (const std::string* text : {&message.content, &message.reasoning}) {
    if (const Result<CodePoints> valid = DecodeUtf8(*text); !valid) return Fail(valid.error());
  }
  return {};
}

Status CheckAll(const Dsv4Marks& marks, std::span<const ChatMessage> messages,
                const ChatOptions& options) {
  if (messages.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the conversation has no messages",
                "give at least one user message");
  }
  if (options.dialect && *options.dialect != ChatDialect::kDsv4) {
    return Fail(ErrorCode::kUnsupported,
                "the vocabulary has no marks for the chat template " +
                    std::string(ChatDialectName(*options.dialect)),
                "use the template dsv4, or continue plain text");
  }
  if (!marks.CanChat()) {
    const char* missing = marks.user < 0        ? "<｜User｜>"
                          : marks.assistant < 0 ? "<｜Assistant｜>"
                                                : "</think>";
    return Fail(ErrorCode::kUnsupported,
                std::string("the vocabulary cannot chat: it has no token ") + missing,
                "continue plain text instead");
  }
  if (options.thinking && marks.think < 0) {
    return Fail(ErrorCode::kUnsupported, "the vocabulary cannot think: it has no token <think>",
                "chat with --no-thinking");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (Status status = CheckMessage(messages[i]); !status) {
      Error error = status.error();
      error.message = "message " + std::to_string(i + 1) + ": " + error.message;
      return Fail(std::move(error));
    }
  }
  return {};
}

// What stands behind the begin mark for the effort that is asked for.
Result<std::string> EffortText(const Dsv4ChatAssets& assets, const ChatOptions& options) {
  if (options.effort.empty()) return std::string();
  if (!options.thinking) {
    return Fail(ErrorCode::kInvalidArgument, "a thinking effort needs thinking",
                "leave the effort or --no-thinking out");
  }
  const auto found = assets.effort.find(options.effort);
  if (found != assets.effort.end()) return found->second;
  std::string known;
  for (const auto& [name, text] : assets.effort) known += (known.empty() ? "" : ", ") + name;
  return Fail(ErrorCode::kUnsupported,
              "the model has no thinking effort \"" + options.effort + "\"",
              known.empty() ? "put its chat assets beside its tokenizer.json" : "use " + known);
}

// Ids of a generated turn.
struct Turn {
  Ids reasoning;
  Ids content;
};

// The ids that a message was generated as, when they spell exactly its texts.
std::optional<Turn> GeneratedTurn(const ChatMessage& message, const Tokenizer& tokenizer,
                                  const Dsv4Marks& marks) {
  const Ids ids = message.ids;
  if (ids.empty()) return std::nullopt;
  Turn turn;
  const auto close = std::find(ids.begin(), ids.end(), marks.end_think);
  if (close != ids.end()) {
    turn = {Ids(ids.begin(), close), Ids(close + 1, ids.end())};
  } else if (!message.reasoning.empty()) {
    turn.reasoning = ids;  // it stopped while it thought
  } else {
    turn.content = ids;
  }
  const auto is_text = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < tokenizer.vocab_size() && !tokenizer.IsSpecial(id);
  };
  for (const auto& [part, text] :
       {std::pair{turn.reasoning, &message.reasoning}, std::pair{turn.content, &message.content}}) {
    if (!std::all_of(part.begin(), part.end(), is_text) || tokenizer.Decode(part) != *text) {
      return std::nullopt;
    }
  }
  return turn;
}

class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, const Dsv4Marks& marks,
               std::span<const ChatMessage> messages, const ChatOptions& options)
      : tokenizer_(tokenizer),
        marks_(marks),
        messages_(messages),
        options_(options),
        out_(tokenizer) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == ChatRole::kUser) behind_last_user_ = i + 1;
    }
  }

  Result<EncodedText> Render(std::string_view effort) {
    out_.Mark(marks_.begin);
    out_.Text(effort);
    for (size_t i = 0; i < messages_.size(); ++i) {
      switch (messages_[i].role) {
        case ChatRole::kSystem:
          out_.Text(messages_[i].content);
          break;
        case ChatRole::kUser:
          User(i);
          break;
        case ChatRole::kAssistant:
          Assistant(i);
          break;
      }
    }
    if (options_.generation_prompt) Head(options_.thinking);
    return out_.Take();
  }

 private:
  bool RoleIs(size_t i, ChatRole role) const {
    return i < messages_.size() && messages_[i].role == role;
  }

  void User(size_t i) {
    if (i > 0 && RoleIs(i - 1, ChatRole::kUser)) {
      out_.Text("\n\n");
    } else {
      out_.Mark(marks_.user);
    }
    out_.Text(messages_[i].content);
    if (RoleIs(i + 1, ChatRole::kAssistant)) Head(options_.thinking && i + 1 >= behind_last_user_);
  }

  void Head(bool thinks) {
    out_.Mark(marks_.assistant);
    out_.Mark(thinks ? marks_.think : marks_.end_think);
  }

  void Assistant(size_t i) {
    const ChatMessage& message = messages_[i];
    const std::optional<Turn> turn = GeneratedTurn(message, tokenizer_, marks_);
    if (options_.thinking && i >= behind_last_user_) {
      Part(turn ? &turn->reasoning : nullptr, message.reasoning);
      out_.Mark(marks_.end_think);
    }
    Part(turn ? &turn->content : nullptr, message.content);
    out_.Mark(marks_.end);
  }

  void Part(const Ids* ids, const std::string& text) {
    if (ids != nullptr) {
      out_.Append(*ids);
    } else {
      out_.Text(text);
    }
  }

  const Tokenizer& tokenizer_;
  const Dsv4Marks& marks_;
  std::span<const ChatMessage> messages_;
  const ChatOptions& options_;
  size_t behind_last_user_ = 0;  // index after the last user message; 0: there is none
  Writer out_;
};

class Dsv4ChannelParser final : public ChannelParser {
 public:
  Dsv4ChannelParser(const Tokenizer& tokenizer, const Dsv4Marks& marks, bool thinking)
      : tokenizer_(tokenizer), marks_(marks), thinks_(thinking) {}

  Channel Feed(int32_t id) override {
    if (id == marks_.think || id == marks_.end_think) thinks_ = id == marks_.think;
    if (tokenizer_.IsSpecial(id)) return Channel::kHidden;
    return thinks_ ? Channel::kReasoning : Channel::kAnswer;
  }

  std::vector<int32_t> ClosingIds() const override {
    if (thinks_) return {marks_.end_think, marks_.end};
    return {marks_.end};
  }

 private:
  const Tokenizer& tokenizer_;
  const Dsv4Marks marks_;
  bool thinks_;
};

}  // namespace

Result<EncodedText> RenderDsv4Chat(const Tokenizer& tokenizer, const Dsv4Marks& marks,
                                   const Dsv4ChatAssets& assets,
                                   std::span<const ChatMessage> messages,
                                   const ChatOptions& options) {
  if (Status status = CheckAll(marks, messages, options); !status) return Fail(status.error());
  Result<std::string> effort = EffortText(assets, options);
  if (!effort) return Fail(effort.error());
  return Conversation(tokenizer, marks, messages, options).Render(*effort);
}

std::unique_ptr<ChannelParser> NewDsv4ChannelParser(const Tokenizer& tokenizer,
                                                    const Dsv4Marks& marks, bool thinking) {
  return std::make_unique<Dsv4ChannelParser>(tokenizer, marks, thinking);
}

}  // namespace mk
