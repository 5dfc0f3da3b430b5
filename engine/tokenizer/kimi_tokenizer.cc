#include "engine/tokenizer/kimi_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/tokenizer/kimi_chat.h"
#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

constexpr int32_t kNoId = -1;

// Everything that tells one vocabulary over a rank file from another.
struct Parts {
  Parts(std::string_view kind_name, RankTable table) : kind(kind_name), ranks(std::move(table)) {}

  std::string_view kind;
  RankTable ranks;
  std::vector<int32_t> to_model;  // by rank: model id, kNoId where the model has none
  std::vector<int32_t> to_full;   // by model id: id in the full vocabulary, kNoId for none
  SpecialTokens specials;
  // Kept tokens alone, to spell dropped ones with; absent: dropped tokens become unk.
  std::optional<RankTable> kept;
  std::vector<int32_t> kept_to_model;  // by rank in `kept`
  bool bos_before_prompt = false;
  std::optional<ChatDialect> dialect = ChatDialect::kK3;
  std::vector<int32_t> prompt_stops;
  std::vector<int32_t> chat_stops;
  SplitLimits limits;
};

class KimiTokenizer final : public Tokenizer {
 public:
  explicit KimiTokenizer(Parts parts) : p_(std::move(parts)) {}

  std::string_view kind() const override { return p_.kind; }
  size_t vocab_size() const override { return p_.to_full.size(); }
  const SpecialTokens& specials() const override { return p_.specials; }
  std::span<const int32_t> prompt_stop_ids() const override { return p_.prompt_stops; }
  std::span<const int32_t> chat_stop_ids() const override { return p_.chat_stops; }
  std::optional<ChatDialect> default_dialect() const override { return p_.dialect; }

  Result<EncodedText> EncodeText(std::string_view utf8) const override {
    EncodedText out;
    if (Status status = Append(utf8, out); !status) return Fail(status.error());
    return out;
  }

  Result<EncodedText> EncodePrompt(std::string_view utf8) const override {
    EncodedText out;
    if (p_.bos_before_prompt) out.ids.push_back(p_.specials.bos);
    if (Status status = Append(utf8, out); !status) return Fail(status.error());
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
    if (!IsKnown(id)) return {};
    const int32_t full = p_.to_full[static_cast<size_t>(id)];
    if (full == kNoId || static_cast<size_t>(full) >= p_.ranks.size()) return {};
    return p_.ranks.Bytes(full);
  }

  std::string TokenName(int32_t id) const override {
    if (!TokenBytes(id).empty()) return {};
    const SpecialTokens full = KimiSpecials();
    const SpecialTokens& s = p_.specials;
    const std::pair<int32_t, int32_t> named[] = {
        {s.bos, full.bos},     {s.eos, full.eos}, {s.open, full.open},
        {s.close, full.close}, {s.sep, full.sep}, {s.end_of_msg, full.end_of_msg},
        {s.unk, full.unk},     {s.pad, full.pad}};
    for (const auto& [ours, theirs] : named) {
      if (ours == id && id >= 0) return KimiSpecialName(theirs);
    }
    if (IsKnown(id) && p_.to_full[static_cast<size_t>(id)] >= kKimiFirstSpecial) {
      return KimiSpecialName(p_.to_full[static_cast<size_t>(id)]);
    }
    return std::string("<|").append(std::to_string(id)).append("|>");
  }

  bool IsSpecial(int32_t id) const override { return IsKnown(id) && TokenBytes(id).empty(); }

 private:
  bool IsKnown(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < vocab_size(); }

  Status Append(std::string_view utf8, EncodedText& out) const {
    const Result<CodePoints> text = DecodeUtf8(utf8);
    if (!text) return Fail(text.error());
    std::vector<int32_t> full;
    std::vector<int32_t> spelled;
    size_t begin = 0;
    for (const size_t chunk_end : SplitText(text->values, p_.limits)) {
      const size_t end = text->offsets[chunk_end];
      full.clear();
      p_.ranks.AppendChunk(utf8.substr(begin, end - begin), full);
      for (const int32_t id : full) AppendRank(id, spelled, out);
      begin = end;
    }
    return {};
  }

  // One token of the rank file in the model's ids.
  void AppendRank(int32_t rank, std::vector<int32_t>& spelled, EncodedText& out) const {
    const int32_t id = p_.to_model[static_cast<size_t>(rank)];
    if (id != kNoId) {
      out.ids.push_back(id);
    } else if (p_.kept) {
      spelled.clear();
      p_.kept->AppendChunk(p_.ranks.Bytes(rank), spelled);
      for (const int32_t kept : spelled) {
        out.ids.push_back(p_.kept_to_model[static_cast<size_t>(kept)]);
      }
    } else {
      out.ids.push_back(p_.specials.unk);
      ++out.unknown;
    }
  }

  const Parts p_;
};

bool IsSingleByteSetComplete(const std::vector<std::string>& tokens) {
  std::vector<bool> seen(256);
  for (const std::string& token : tokens) {
    if (token.size() == 1) seen[static_cast<uint8_t>(token[0])] = true;
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

// Fills `kept` when the kept tokens can spell everything.
Status KeepSpelling(Parts& parts, const std::string& what) {
  std::vector<std::string> tokens;
  for (size_t id = 0; id < parts.to_full.size(); ++id) {
    const int32_t full = parts.to_full[id];
    if (full == kNoId || static_cast<size_t>(full) >= parts.ranks.size()) continue;
    tokens.emplace_back(parts.ranks.Bytes(full));
    parts.kept_to_model.push_back(static_cast<int32_t>(id));
  }
  if (!IsSingleByteSetComplete(tokens)) return {};
  Result<RankTable> kept = RankTable::FromTokens(tokens, what);
  if (!kept) return Fail(kept.error());
  parts.kept = std::move(*kept);
  return {};
}

}  // namespace

std::string KimiSpecialName(int32_t full_id) {
  switch (full_id) {
    // clang-format off
    case 163584: return "[BOS]";
    case 163585: return "[EOS]";
    case 163586: return "<|end_of_msg|>";
    case 163587: return "<|open|>";
    case 163588: return "<|close|>";
    case 163589: return "<|sep|>";
    case 163590: return "[start_header_id]";
    case 163591: return "[end_header_id]";
    case 163593: return "[EOT]";
    case 163602: return "<|media_begin|>";
    case 163603: return "<|media_content|>";
    case 163604: return "<|media_end|>";
    case 163605: return "<|media_pad|>";
    case 163649: return "<osagent_mode>";
    case 163838: return "[UNK]";
    case 163839: return "[PAD]";
    // clang-format on
    default:
      return std::string("<|reserved_token_").append(std::to_string(full_id)).append("|>");
  }
}

SpecialTokens KimiSpecials() {
  SpecialTokens s;
  s.bos = 163584;
  s.eos = 163585;
  s.end_of_msg = 163586;
  s.open = 163587;
  s.close = 163588;
  s.sep = 163589;
  s.unk = 163838;
  s.pad = 163839;
  return s;
}

Result<std::shared_ptr<const Tokenizer>> MakeFullTokenizer(RankTable ranks,
                                                           const SplitLimits& limits) {
  if (ranks.size() > kKimiRanks) {
    return Fail(ErrorCode::kIncompatible,
                "the rank file has " + std::to_string(ranks.size()) + " tokens, the full " +
                    "vocabulary has 163584",
                "name the rank file of the model with --tokenizer-file");
  }
  Parts parts("k3", std::move(ranks));
  parts.to_model.resize(parts.ranks.size());
  parts.to_full.resize(kKimiVocab);
  for (size_t i = 0; i < parts.to_model.size(); ++i) parts.to_model[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < parts.to_full.size(); ++i) parts.to_full[i] = static_cast<int32_t>(i);
  parts.specials = KimiSpecials();
  parts.dialect = ChatDialect::kK3;
  parts.chat_stops = {parts.specials.end_of_msg, parts.specials.eos, parts.specials.bos};
  parts.prompt_stops = parts.chat_stops;
  parts.limits = limits;
  return std::make_shared<const KimiTokenizer>(std::move(parts));
}

Result<std::shared_ptr<const Tokenizer>> MakeVocabTokenizer(RankTable ranks, const VocabJson& vocab,
                                                            const std::string& what,
                                                            const SplitLimits& limits) {
  const bool own = vocab.format == VocabFormat::kOwn;
  if (own && vocab.full_ids.size() != ranks.size()) {
    return Fail(ErrorCode::kIncompatible,
                what + " has " + std::to_string(ranks.size()) + " tokens, the vocabulary lists " +
                    std::to_string(vocab.full_ids.size()),
                "give the rank file that was made with the vocabulary");
  }
  if (!own && ranks.size() > kKimiRanks) {
    return Fail(ErrorCode::kIncompatible, what + " has more tokens than the Kimi vocabulary",
                "name the rank file of the model with --tokenizer-file");
  }
  Parts parts(own ? "k3-own" : "k3-remap", std::move(ranks));
  parts.to_model.assign(parts.ranks.size(), kNoId);
  parts.to_full.assign(vocab.vocab_size, kNoId);
  for (size_t id = 0; id < vocab.full_ids.size(); ++id) {
    const int32_t full = vocab.full_ids[id];
    const auto rank = static_cast<size_t>(full);
    if (rank < parts.ranks.size()) {
      parts.to_model[rank] = static_cast<int32_t>(id);
    } else if (own || full < kKimiFirstSpecial) {
      return Fail(ErrorCode::kIncompatible,
                  "the vocabulary uses token " + std::to_string(full) + ", " + what + " has " +
                      std::to_string(parts.ranks.size()),
                  "give the rank file that the vocabulary was made from");
    }
    parts.to_full[id] = full;
  }
  parts.specials = vocab.specials;
  parts.bos_before_prompt = true;
  parts.dialect = vocab.dialect;
  parts.chat_stops = {vocab.specials.end_of_msg, vocab.specials.eos, vocab.specials.bos};
  parts.prompt_stops = {vocab.specials.eos, vocab.specials.bos};
  parts.limits = limits;
  if (vocab.format == VocabFormat::kRemap) {
    if (Status status = KeepSpelling(parts, what); !status) return Fail(status.error());
  }
  return std::make_shared<const KimiTokenizer>(std::move(parts));
}

}  // namespace mk
