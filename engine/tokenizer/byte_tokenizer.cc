#include "engine/tokenizer/byte_tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/tokenizer/kimi_chat.h"
#include "engine/tokenizer/kimi_tokenizer.h"
#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

constexpr size_t kBytes = 256;
constexpr size_t kSpecials = 8;
constexpr size_t kMaxVocab = size_t{1} << 24;

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(size_t vocab_size) {
    const auto first = static_cast<int32_t>(vocab_size - kSpecials);
    specials_ = vocab_size >= kKimiVocab
                    ? KimiSpecials()
                    : SpecialTokens{first,     first + 1, first + 2, first + 3,
                                    first + 4, first + 5, first + 6, first + 7};
    const SpecialTokens& s = specials_;
    special_ids_ = {s.bos, s.eos, s.open, s.close, s.sep, s.end_of_msg, s.unk, s.pad};
    prompt_stops_ = {s.eos, s.end_of_msg, s.bos};
    offsets_.reserve(vocab_size + 1);
    for (size_t id = 0; id < vocab_size; ++id) {
      offsets_.push_back(static_cast<uint32_t>(text_.size()));
      if (id < kBytes) {
        text_.push_back(static_cast<char>(id));
      } else if (!IsSpecial(static_cast<int32_t>(id))) {
        text_ += Placeholder(static_cast<int32_t>(id));
      }
    }
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
  }

  std::string_view kind() const override { return "bytes"; }
  size_t vocab_size() const override { return offsets_.size() - 1; }
  const SpecialTokens& specials() const override { return specials_; }
  std::span<const int32_t> prompt_stop_ids() const override { return prompt_stops_; }
  std::span<const int32_t> chat_stop_ids() const override { return prompt_stops_; }
  std::optional<ChatDialect> default_dialect() const override { return ChatDialect::kK3; }

  Result<EncodedText> EncodeText(std::string_view utf8) const override {
    const Result<CodePoints> valid = DecodeUtf8(utf8);
    if (!valid) return Fail(valid.error());
    EncodedText out;
    out.ids.reserve(utf8.size());
    for (const char c : utf8) out.ids.push_back(static_cast<uint8_t>(c));
    return out;
  }

  Result<EncodedText> EncodePrompt(std::string_view utf8) const override {
    Result<EncodedText> out = EncodeText(utf8);
    if (out) out->ids.insert(out->ids.begin(), specials_.bos);
    return out;
  }

  Result<EncodedText> RenderChat(std::span<const ChatMessage> messages,
                                 const ChatOptions& options) const override {
    return RenderKimiChat(*this, messages, options);
  }

  std::unique_ptr<ChannelParser> NewChannelParser(const ChatOptions& options) const override {
    return NewKimiChannelParser(*this, options);
  }

  std::string_view TokenBytes(int32_t id) const override {
    if (id < 0 || static_cast<size_t>(id) >= vocab_size()) return {};
    const auto index = static_cast<size_t>(id);
    return std::string_view(text_).substr(offsets_[index], offsets_[index + 1] - offsets_[index]);
  }

  std::string TokenName(int32_t id) const override {
    if (!TokenBytes(id).empty()) return {};
    const SpecialTokens full = KimiSpecials();
    const std::array<int32_t, kSpecials> names = {full.bos, full.eos,        full.open, full.close,
                                                  full.sep, full.end_of_msg, full.unk,  full.pad};
    const auto found = std::find(special_ids_.begin(), special_ids_.end(), id);
    if (found == special_ids_.end()) return Placeholder(id);
    return KimiSpecialName(names[static_cast<size_t>(found - special_ids_.begin())]);
  }

  bool IsSpecial(int32_t id) const override {
    return std::find(special_ids_.begin(), special_ids_.end(), id) != special_ids_.end();
  }

 private:
  static std::string Placeholder(int32_t id) {
    return std::string("<|").append(std::to_string(id)).append("|>");
  }

  SpecialTokens specials_;
  std::array<int32_t, kSpecials> special_ids_{};
  std::vector<int32_t> prompt_stops_;
  std::string text_;               // of all ids, in order
  std::vector<uint32_t> offsets_;  // by id, into text_
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeByteTokenizer(size_t vocab_size) {
  if (vocab_size < kBytes + kSpecials || vocab_size > kMaxVocab) {
    return Fail(ErrorCode::kIncompatible,
                "a byte tokenizer needs a model of at least 264 token ids, this one has " +
                    std::to_string(vocab_size),
                "give a vocabulary with --vocab or token ids with --ids");
  }
  return std::make_shared<const ByteTokenizer>(vocab_size);
}

}  // namespace mk
