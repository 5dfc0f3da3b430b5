#include "engine/tokenizer/kimi_chat.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/generated_turn.h"
#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

// Appends markup to one list of ids; the first failure sticks.
class Renderer {
 public:
  explicit Renderer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  using Attributes = std::vector<std::pair<std::string_view, std::string_view>>;

  void Open(std::string_view tag, const Attributes& attributes = {}) {
    Special(tokenizer_.specials().open);
    Text(tag);
    for (const auto& [key, value] : attributes) {
      Text(std::string(" ").append(key));
      Text("=\"");
      Text(Escape(value));
      Text("\"");
    }
    Special(tokenizer_.specials().sep);
  }

  void Close(std::string_view tag) {
    Special(tokenizer_.specials().close);
    Text(tag);
    Special(tokenizer_.specials().sep);
  }

  void End() { Special(tokenizer_.specials().end_of_msg); }

  void Ids(std::span<const int32_t> ids) {
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
  }

  void Text(std::string_view text) {
    if (text.empty() || !status_) return;
    Result<EncodedText> piece = tokenizer_.EncodeText(text);
    if (!piece) {
      status_ = Fail(piece.error());
      return;
    }
    out_.ids.insert(out_.ids.end(), piece->ids.begin(), piece->ids.end());
    out_.unknown += piece->unknown;
  }

  const Status& status() const { return status_; }
  EncodedText Take() { return std::move(out_); }

 private:
  void Special(int32_t id) { out_.ids.push_back(id); }

  static std::string Escape(std::string_view value) {
    std::string out;
    for (const char c : value) {
      if (c == '&') {
        out += "&amp;";
      } else if (c == '"') {
        out += "&quot;";
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  const Tokenizer& tokenizer_;
  EncodedText out_;
  Status status_;
};

// Only white space, as Python's str.isspace has it. Ill-formed text is not blank: encoding it
// reports the error.
bool IsBlank(std::string_view text) {
  const Result<CodePoints> points = DecodeUtf8(text);
  return points && std::all_of(points->values.begin(), points->values.end(), [](char32_t c) {
           return PropertiesOf(c).IsWhiteSpace() || (c >= 0x1C && c <= 0x1F);
         });
}

Status CheckMessage(const ChatMessage& message) {
  const std::string role(ChatRoleName(message.role));
  if (message.role == ChatRole::kAssistant && !message.name.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "an assistant message cannot have a name",
                "leave \"name\" out");
  }
  if (message.role != ChatRole::kAssistant && !message.reasoning.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a " + role + " message cannot have reasoning",
                "leave \"reasoning\" out");
  }
  if (message.role != ChatRole::kAssistant && !message.ids.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "a " + role + " message cannot have generated ids",
                "leave \"ids\" out");
  }
  return {};
}

// Whether the turn begins in the think channel.
bool OpensThink(ChatDialect dialect, bool thinking) {
  return thinking || dialect == ChatDialect::kNanoSft;
}

void OpenTurn(ChatDialect dialect, bool thinking, Renderer& out) {
  out.Open("message", {{"role", "assistant"}});
  out.Open(OpensThink(dialect, thinking) ? "think" : "response");
}

void RenderAssistant(const ChatMessage& message, const Tokenizer& tokenizer,
                     const ChatOptions& options, ChatDialect dialect, Renderer& out) {
  const bool thinking = options.thinking;
  if (!message.ids.empty()) {
    const std::unique_ptr<ChannelParser> parser = tokenizer.NewChannelParser(options);
    if (IsGeneratedAs(message, tokenizer, *parser)) {
      OpenTurn(dialect, thinking, out);
      out.Ids(message.ids);
      out.Ids(parser->ClosingIds());
      return;
    }
  }
  out.Open("message", {{"role", "assistant"}});
  if (dialect == ChatDialect::kNanoSft) {
    out.Open("think");
    out.Text(message.content);
    out.End();
    return;
  }
  if (thinking) {
    out.Open("think");
    if (!IsBlank(message.reasoning)) out.Text(message.reasoning);
    out.Close("think");
  }
  out.Open("response");
  out.Text(message.content);
  out.Close("response");
  out.Close("message");
  out.End();
}

void RenderMessage(const ChatMessage& message, const Tokenizer& tokenizer,
                   const ChatOptions& options, ChatDialect dialect, Renderer& out) {
  if (message.role == ChatRole::kAssistant) {
    RenderAssistant(message, tokenizer, options, dialect, out);
    return;
  }
  Renderer::Attributes attributes = {{"role", ChatRoleName(message.role)}};
  if (!message.name.empty()) attributes.emplace_back("name", message.name);
  out.Open("message", attributes);
  out.Text(message.content);
  out.Close("message");
  out.End();
}

// The markup of a generated turn as a stack of open tags and, while one is being read, a tag.
class KimiChannelParser final : public ChannelParser {
 public:
  KimiChannelParser(const Tokenizer& tokenizer, ChatDialect dialect, bool thinking)
      : tokenizer_(tokenizer), dialect_(dialect) {
    stack_ = {"message", OpensThink(dialect, thinking) ? "think" : "response"};
  }

  Channel Feed(int32_t id) override {
    const SpecialTokens& special = tokenizer_.specials();
    if (id == special.open || id == special.close) {
      reading_ = id == special.open ? Reading::kOpen : Reading::kClose;
      tag_.clear();
    } else if (id == special.sep) {
      FinishTag();
    } else if (reading_ != Reading::kText) {
      if (tag_.size() < kMaxTagBytes) tag_.append(tokenizer_.TokenBytes(id));
    } else if (!tokenizer_.IsSpecial(id)) {
      return Current();
    }
    return Channel::kHidden;
  }

  std::vector<int32_t> ClosingIds() const override {
    if (dialect_ == ChatDialect::kNanoSft) return {tokenizer_.specials().end_of_msg};
    KimiChannelParser rest(*this);
    Renderer out(tokenizer_);
    std::vector<int32_t> ids;
    if (reading_ != Reading::kText) {
      ids.push_back(tokenizer_.specials().sep);  // the tag ends here, whatever it has become
      rest.FinishTag();
    }
    for (; !rest.stack_.empty(); rest.stack_.pop_back()) out.Close(rest.stack_.back());
    out.End();
    const EncodedText closing = out.Take();
    ids.insert(ids.end(), closing.ids.begin(), closing.ids.end());
    return ids;
  }

 private:
  enum class Reading { kText, kOpen, kClose };
  static constexpr size_t kMaxTagBytes = 256;
  static constexpr size_t kMaxDepth = 64;  // a model may open tags without end

  KimiChannelParser(const KimiChannelParser& other)
      : tokenizer_(other.tokenizer_),
        dialect_(other.dialect_),
        stack_(other.stack_),
        reading_(other.reading_),
        tag_(other.tag_) {}

  void FinishTag() {
    const std::string name = ReplaceIllFormed(tag_.substr(0, tag_.find(' ')));
    if (reading_ == Reading::kOpen && stack_.size() < kMaxDepth) {
      stack_.push_back(name);
    } else if (reading_ == Reading::kClose) {
      // Closing an outer tag closes what is inside it; a tag that is not open changes nothing.
      const auto found = std::find(stack_.rbegin(), stack_.rend(), name);
      if (found != stack_.rend()) stack_.erase(found.base() - 1, stack_.end());
    }
    reading_ = Reading::kText;
    tag_.clear();
  }

  Channel Current() const {
    if (stack_.empty()) return Channel::kHidden;
    if (stack_.back() == "response") return Channel::kAnswer;
    if (stack_.back() != "think") return Channel::kHidden;
    return dialect_ == ChatDialect::kNanoSft ? Channel::kAnswer : Channel::kReasoning;
  }

  const Tokenizer& tokenizer_;
  ChatDialect dialect_;
  std::vector<std::string> stack_;  // names of the open tags, innermost last
  Reading reading_ = Reading::kText;
  std::string tag_;  // bytes of the tag being read
};

}  // namespace

Result<EncodedText> RenderKimiChat(const Tokenizer& tokenizer,
                                   std::span<const ChatMessage> messages,
                                   const ChatOptions& options) {
  if (messages.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the conversation has no messages",
                "give at least one user message");
  }
  const std::optional<ChatDialect> dialect =
      options.dialect ? options.dialect : tokenizer.default_dialect();
  if (!dialect) {
    return Fail(ErrorCode::kUnsupported, "the model has no chat template",
                "continue plain text instead, or name a template that it has the marks for: k3, "
                "nano-sft or dsv4");
  }
  if (*dialect == ChatDialect::kDsv4) {
    return Fail(ErrorCode::kUnsupported, "the vocabulary has no marks for the chat template dsv4",
                "name another template: k3, nano-sft");
  }
  if (!options.effort.empty()) {
    return Fail(ErrorCode::kUnsupported, "the chat template has no thinking efforts",
                "leave the effort out");
  }
  Renderer out(tokenizer);
  for (size_t i = 0; i < messages.size(); ++i) {
    Status status = CheckMessage(messages[i]);
    if (status) {
      RenderMessage(messages[i], tokenizer, options, *dialect, out);
      status = out.status();
    }
    if (!status) {
      Error error = status.error();
      error.message = "message " + std::to_string(i + 1) + ": " + error.message;
      return Fail(std::move(error));
    }
  }
  if (options.generation_prompt) OpenTurn(*dialect, options.thinking, out);
  return out.Take();
}

std::unique_ptr<ChannelParser> NewKimiChannelParser(const Tokenizer& tokenizer,
                                                    const ChatOptions& options) {
  const ChatDialect usual = tokenizer.default_dialect().value_or(ChatDialect::kK3);
  return std::make_unique<KimiChannelParser>(tokenizer, options.dialect.value_or(usual),
                                             options.thinking);
}

}  // namespace mk
