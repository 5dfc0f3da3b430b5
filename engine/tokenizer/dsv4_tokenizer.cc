#include "engine/tokenizer/dsv4_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/tokenizer/dsv4_chat.h"

namespace mk {
namespace {

constexpr int32_t kNoId = -1;

// Names of the marks, with U+FF5C for bars and U+2581 for spaces.
constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kPad = "<｜▁pad▁｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kUnknown = "<unk>";

// Everything that tells a remap from the whole vocabulary.
struct Parts {
  explicit Parts(Dsv4Vocabulary v) : vocabulary(std::move(v)) {}

  Dsv4Vocabulary vocabulary;
  std::string_view kind;
  std::vector<int32_t> to_full;   // by model id: id of the vocabulary, kNoId for none
  std::vector<int32_t> to_model;  // by id of the vocabulary: model id, kNoId for none
  std::vector<bool> hidden;       // by id of the vocabulary: a mark without text
  SpecialTokens specials;
  Dsv4Marks marks;
  Dsv4ChatAssets assets;
  bool can_chat = false;
  std::vector<int32_t> stops;
};

int32_t IdOf(const Dsv4Vocabulary& vocabulary, std::string_view name) {
  const AddedToken* token = vocabulary.added().Find(name);
  return token ? token->id : kNoId;
}

class Dsv4Tokenizer final : public Tokenizer {
 public:
  explicit Dsv4Tokenizer(Parts parts) : p_(std::move(parts)) {}

  std::string_view kind() const override { return p_.kind; }
  size_t vocab_size() const override { return p_.to_full.size(); }
  const SpecialTokens& specials() const override { return p_.specials; }
  std::span<const int32_t> prompt_stop_ids() const override { return p_.stops; }
  std::span<const int32_t> chat_stop_ids() const override { return p_.stops; }

  std::optional<ChatDialect> default_dialect() const override {
    return p_.can_chat ? std::optional(ChatDialect::kDsv4) : std::nullopt;
  }

  Result<EncodedText> EncodeText(std::string_view utf8) const override {
    Result<std::vector<int32_t>> full = p_.vocabulary.Encode(utf8);
    if (!full) return Fail(full.error());
    EncodedText out;
    out.ids = std::move(*full);
    for (int32_t& id : out.ids) {
      id = p_.to_model[static_cast<size_t>(id)];
      if (id != kNoId) continue;
      id = p_.specials.unk;
      ++out.unknown;
    }
    return out;
  }

  Result<EncodedText> EncodePrompt(std::string_view utf8) const override {
    Result<EncodedText> out = EncodeText(utf8);
    if (out) out->ids.insert(out->ids.begin(), p_.specials.bos);
    return out;
  }

  Result<EncodedText> RenderChat(std::span<const ChatMessage> messages,
                                 const ChatOptions& options) const override {
    if (!p_.can_chat && !options.dialect && p_.marks.CanChat()) {
      return Fail(ErrorCode::kUnsupported, "the model has no chat template",
                  "continue plain text instead, or name a template: dsv4");
    }
    return RenderDsv4Chat(*this, p_.marks, p_.assets, messages, options);
  }

  std::unique_ptr<ChannelParser> NewChannelParser(const ChatOptions& options) const override {
    return NewDsv4ChannelParser(*this, p_.marks, options.thinking);
  }

  std::string_view TokenBytes(int32_t id) const override {
    const int32_t full = FullId(id);
    if (full == kNoId || p_.hidden[static_cast<size_t>(full)]) return {};
    return p_.vocabulary.Bytes(full);
  }

  std::string TokenName(int32_t id) const override {
    if (!TokenBytes(id).empty()) return {};
    const int32_t full = FullId(id);
    if (full != kNoId && !p_.vocabulary.Bytes(full).empty()) {
      return std::string(p_.vocabulary.Bytes(full));
    }
    const SpecialTokens& s = p_.specials;
    for (const auto& [special, name] :
         {std::pair{s.bos, kBegin}, {s.eos, kEnd}, {s.pad, kPad}, {s.unk, kUnknown}}) {
      if (special == id && id >= 0) return std::string(name);
    }
    return "<|" + std::to_string(id) + "|>";
  }

  bool IsSpecial(int32_t id) const override { return IsKnown(id) && TokenBytes(id).empty(); }

 private:
  bool IsKnown(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < vocab_size(); }
  int32_t FullId(int32_t id) const {
    return IsKnown(id) ? p_.to_full[static_cast<size_t>(id)] : kNoId;
  }

  const Parts p_;
};

// Marks are the tokens that the file calls special and those of the template.
std::vector<bool> HiddenTokens(const Dsv4Vocabulary& vocabulary) {
  std::vector<bool> hidden(vocabulary.size());
  for (const AddedToken& token : vocabulary.added().tokens()) {
    if (token.special) hidden[static_cast<size_t>(token.id)] = true;
  }
  for (const std::string_view name : {kBegin, kEnd, kPad, kUser, kAssistant, kThink, kEndThink}) {
    const int32_t id = IdOf(vocabulary, name);
    if (id != kNoId) hidden[static_cast<size_t>(id)] = true;
  }
  return hidden;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> MakeDsv4Tokenizer(Dsv4Vocabulary vocabulary,
                                                           const std::string& what,
                                                           Dsv4ChatAssets assets) {
  Parts parts(std::move(vocabulary));
  const Dsv4Vocabulary& v = parts.vocabulary;
  for (const std::string_view name : {kBegin, kEnd}) {
    if (IdOf(v, name) != kNoId) continue;
    return Fail(ErrorCode::kIncompatible, what + " has no added token " + std::string(name),
                "give the tokenizer.json of a DeepSeek-V4 model");
  }
  parts.kind = "dsv4";
  for (size_t id = 0; id < v.size(); ++id) parts.to_full.push_back(static_cast<int32_t>(id));
  parts.to_model = parts.to_full;
  parts.hidden = HiddenTokens(v);
  parts.marks = {IdOf(v, kBegin),     IdOf(v, kEnd),   IdOf(v, kUser),
                 IdOf(v, kAssistant), IdOf(v, kThink), IdOf(v, kEndThink)};
  parts.specials.bos = parts.marks.begin;
  parts.specials.eos = parts.marks.end;
  parts.specials.end_of_msg = parts.marks.end;
  parts.specials.pad = IdOf(v, kPad);
  parts.can_chat = assets.can_chat && parts.marks.CanChat();
  parts.assets = std::move(assets);
  parts.stops = {parts.marks.end};
  // A model that begins a turn of the user has ended its own.
  if (parts.marks.user != kNoId) parts.stops.push_back(parts.marks.user);
  return std::make_shared<const Dsv4Tokenizer>(std::move(parts));
}

Result<std::shared_ptr<const Tokenizer>> MakeDsv4RemapTokenizer(Dsv4Vocabulary vocabulary,
                                                                const Dsv4Remap& remap,
                                                                const std::string& what) {
  Parts parts(std::move(vocabulary));
  const size_t full_size = parts.vocabulary.size();
  parts.kind = "dsv4-remap";
  parts.to_full.assign(remap.vocab_size, kNoId);
  parts.to_model.assign(full_size, kNoId);
  for (size_t id = 0; id < remap.full_ids.size(); ++id) {
    const int32_t full = remap.full_ids[id];
    if (static_cast<size_t>(full) >= full_size || parts.vocabulary.Bytes(full).empty()) {
      return Fail(ErrorCode::kIncompatible,
                  "the vocabulary uses token " + std::to_string(full) + ", which " + what +
                      " does not have",
                  "give the tokenizer.json that the vocabulary was made from");
    }
    parts.to_full[id] = full;
    parts.to_model[static_cast<size_t>(full)] = static_cast<int32_t>(id);
  }
  parts.hidden = HiddenTokens(parts.vocabulary);
  parts.specials = remap.specials;
  parts.marks.begin = remap.specials.bos;
  parts.marks.end = remap.specials.eos;
  parts.stops = {remap.specials.eos};
  if (remap.specials.end_of_msg != remap.specials.eos) {
    parts.stops.push_back(remap.specials.end_of_msg);
  }
  return std::make_shared<const Dsv4Tokenizer>(std::move(parts));
}

}  // namespace mk
