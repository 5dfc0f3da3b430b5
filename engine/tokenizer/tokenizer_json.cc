#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/base/strict_json.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/dsv4_splitter.h"
#include "engine/tokenizer/rank_table.h"
#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr size_t kShownBytes = 60;
constexpr int32_t kNoId = -1;

// A string of the file for a message, cut when it is long.
std::string Quoted(std::string_view text) {
  const bool cut = text.size() > kShownBytes;
  return '"' + ReplaceIllFormed(text.substr(0, kShownBytes)) + (cut ? "...\"" : "\"");
}

// A pattern with the escapes of CR and LF replaced by the characters.
std::string WithoutEscapedNewlines(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out.push_back(pattern[i]);
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 'r' || escaped == 'n') {
      out.push_back(escaped == 'r' ? '\r' : '\n');
    } else {
      out.append({'\\', escaped});
    }
  }
  return out;
}

// The value of a key, null when the key is missing.
const Json& At(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

bool IsFalse(const Json& value) {
  return value.is_boolean() && !value.get<bool>();
}

// Reads one file; the first problem found ends the reading.
class Reader {
 public:
  Reader(const Json& json, const std::string& what) : json_(json), what_(what) {}

  Result<TokenizerJson> Read() {
    if (!json_.is_object()) return Bad("it is not an object");
    if (!At(json_, "model").is_object()) return Bad("\"model\" must be an object");
    for (auto step : {&Reader::CheckModel, &Reader::CheckNormalizer, &Reader::CheckPreTokenizer,
                      &Reader::ReadVocab, &Reader::ReadMerges, &Reader::ReadAddedTokens}) {
      if (Status status = (this->*step)(); !status) return Fail(status.error());
    }
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> Bad(const std::string& problem) const {
    return Fail(ErrorCode::kCorrupt, what_ + ": " + problem,
                "copy the tokenizer.json of the model again");
  }
  tl::unexpected<Error> Unsupported(const std::string& problem) const {
    return Fail(ErrorCode::kUnsupported, what_ + ": " + problem,
                "give the tokenizer.json of a DeepSeek-V4 model");
  }

  static std::optional<int32_t> IdOf(const Json& value) {
    if (!value.is_number_unsigned()) return std::nullopt;
    const auto number = value.get<uint64_t>();
    if (number >= kMaxTokenizerIds) return std::nullopt;
    return static_cast<int32_t>(number);
  }

  Status CheckModel() {
    const Json& model = json_["model"];
    if (At(model, "type") != "BPE") return Unsupported("model.type is not \"BPE\"");
    for (const char* key : {"unk_token", "dropout", "byte_fallback", "continuing_subword_prefix",
                            "end_of_word_suffix"}) {
      const Json& value = At(model, key);
      const bool off = value.is_null() || IsFalse(value) || value == "" ||
                       (value.is_number() && value.get<double>() == 0);
      if (!off) return Unsupported(std::string("model.") + key + " is not supported");
    }
    const Json& ignore = At(model, "ignore_merges");
    if (!ignore.is_null() && !ignore.is_boolean()) {
      return Bad("model.ignore_merges must be true or false");
    }
    out_.ignore_merges = ignore.is_boolean() && ignore.get<bool>();
    return {};
  }

  Status CheckNormalizer() {
    const Json& normalizer = At(json_, "normalizer");
    if (normalizer.is_null()) return {};
    const bool empty = normalizer.is_object() && At(normalizer, "type") == "Sequence" &&
                       At(normalizer, "normalizers") == Json::array();
    if (!empty) return Unsupported("normalizers are not supported");
    return {};
  }

  Status CheckPreTokenizer() {
    if (!json_.contains("pre_tokenizer")) return {};
    const Json& outer = json_["pre_tokenizer"];
    constexpr size_t kSplits = std::size(kDsv4SplitPatterns);
    if (!outer.is_object() || At(outer, "type") != "Sequence" ||
        !At(outer, "pretokenizers").is_array() || outer["pretokenizers"].size() != kSplits + 1) {
      return Unsupported("pre_tokenizer is not three splits and ByteLevel in a Sequence");
    }
    const Json& steps = outer["pretokenizers"];
    for (size_t i = 0; i < kSplits; ++i) {
      const std::string where = "pre_tokenizer step " + std::to_string(i + 1);
      const Json& step = steps[i];
      if (!step.is_object() || At(step, "type") != "Split" || At(step, "behavior") != "Isolated" ||
          !IsFalse(At(step, "invert")) || !At(step, "pattern").is_object() ||
          !At(step["pattern"], "Regex").is_string()) {
        return Unsupported(where + " is not an isolating Split by a Regex");
      }
      const auto& pattern = step["pattern"]["Regex"].get_ref<const std::string&>();
      if (WithoutEscapedNewlines(pattern) != kDsv4SplitPatterns[i]) {
        return Unsupported(where + " has another pattern than DeepSeek-V4: " + Quoted(pattern));
      }
    }
    const Json& last = steps[kSplits];
    if (!last.is_object() || At(last, "type") != "ByteLevel" ||
        !IsFalse(At(last, "add_prefix_space")) || !IsFalse(At(last, "use_regex"))) {
      return Unsupported(
          "the last pre_tokenizer step is not ByteLevel without add_prefix_space and use_regex");
    }
    return {};
  }

  // Puts a token at its id, which must be free.
  Status Place(int32_t id, std::string bytes, const std::string& where) {
    const auto index = static_cast<size_t>(id);
    if (bytes.empty() || bytes.size() > kMaxTokenBytes) {
      return Bad(where + ": a token must have 1 to 4096 bytes");
    }
    if (index >= out_.tokens.size()) out_.tokens.resize(index + 1);
    if (!out_.tokens[index].empty()) {
      return Bad(where + ": id " + std::to_string(id) + " is also that of another token");
    }
    out_.tokens[index] = std::move(bytes);
    return {};
  }

  Status ReadVocab() {
    const Json& vocab = At(json_["model"], "vocab");
    if (!vocab.is_object()) return Bad("model.vocab must be an object");
    if (vocab.size() > kMaxTokenizerIds) return Bad("model.vocab has more than 2^20 tokens");
    ids_.reserve(vocab.size());
    out_.tokens.reserve(vocab.size());
    for (const auto& [text, value] : vocab.get_ref<const Json::object_t&>()) {
      const std::string where = "model.vocab " + Quoted(text);
      const std::optional<int32_t> id = IdOf(value);
      if (!id) return Bad(where + ": the id is not an integer in [0, 2^20)");
      if (Status status = Place(*id, SpelledBytes(text), where); !status) return status;
      ids_.emplace(text, *id);
    }
    for (size_t byte = 0; byte < 256; ++byte) {
      const std::string character = ByteCharacter(static_cast<unsigned char>(byte));
      const int32_t id = IdOfToken(character);
      if (id == kNoId) {
        return Bad("model.vocab has no token " + Quoted(character) + " for byte " +
                   std::to_string(byte));
      }
      out_.byte_ids[byte] = id;
      made_.insert(id);
    }
    return {};
  }

  int32_t IdOfToken(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? kNoId : found->second;
  }

  // The two parts of an entry of model.merges; nothing when it is neither of the two forms.
  static std::optional<std::pair<std::string_view, std::string_view>> PartsOf(const Json& entry) {
    if (entry.is_string()) {
      const std::string_view text = entry.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.rfind(' ') != space) return std::nullopt;
      return std::pair{text.substr(0, space), text.substr(space + 1)};
    }
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) {
      return std::nullopt;
    }
    return std::pair<std::string_view, std::string_view>{entry[0].get_ref<const std::string&>(),
                                                         entry[1].get_ref<const std::string&>()};
  }

  Status ReadMerges() {
    const Json& merges = At(json_["model"], "merges");
    if (!merges.is_array()) return Bad("model.merges must be an array");
    if (merges.size() > kMaxTokenizerIds) return Bad("model.merges has more than 2^20 entries");
    std::unordered_set<uint64_t> pairs;
    pairs.reserve(merges.size());
    out_.merges.reserve(merges.size());
    std::string joined;
    for (const Json& entry : merges) {
      const auto where = [&] { return "model.merges[" + std::to_string(out_.merges.size()) + "]"; };
      const auto parts = PartsOf(entry);
      if (!parts) return Bad(where() + " is neither \"A B\" nor [\"A\", \"B\"]");
      joined.assign(parts->first).append(parts->second);
      const PairMerge merge{IdOfToken(parts->first), IdOfToken(parts->second), IdOfToken(joined)};
      for (const auto& [id, text] :
           {std::pair{merge.left, parts->first}, std::pair{merge.right, parts->second},
            std::pair{merge.merged, std::string_view(joined)}}) {
        if (id == kNoId) return Bad(where() + ": " + Quoted(text) + " is not in model.vocab");
      }
      const uint64_t pair =
          (uint64_t{static_cast<uint32_t>(merge.left)} << 32) | static_cast<uint32_t>(merge.right);
      if (!pairs.insert(pair).second) return Bad(where() + " repeats a pair");
      made_.insert(merge.merged);
      out_.merges.push_back(merge);
    }
    return {};
  }

  Status ReadAddedTokens() {
    const Json& added = At(json_, "added_tokens");
    if (added.is_null()) return {};
    if (!added.is_array()) return Bad("\"added_tokens\" must be an array");
    if (added.size() > kMaxTokenizerIds) return Bad("\"added_tokens\" has more than 2^20 entries");
    std::unordered_set<std::string_view> contents;
    std::unordered_set<int32_t> ids;
    for (const Json& entry : added) {
      const std::string where = "added_tokens[" + std::to_string(out_.added.size()) + "]";
      Result<AddedToken> token = ReadAddedToken(entry, where);
      if (!token) return Fail(token.error());
      const auto& content = entry["content"].get_ref<const std::string&>();
      if (!contents.insert(content).second) return Bad(where + " repeats " + Quoted(content));
      if (!ids.insert(token->id).second) {
        return Bad(where + " repeats id " + std::to_string(token->id));
      }
      const int32_t known = IdOfToken(content);
      if (known != kNoId && known != token->id) {
        return Bad(where + ": " + Quoted(content) + " has id " + std::to_string(token->id) +
                   " here and " + std::to_string(known) + " in model.vocab");
      }
      if (known == kNoId) {
        if (Status status = Place(token->id, content, where); !status) return status;
      } else if (made_.contains(known)) {
        return Unsupported(where + ": ordinary text becomes " + Quoted(content) +
                           ", which is no mark then");
      }
      out_.added.push_back(std::move(*token));
    }
    return {};
  }

  Result<AddedToken> ReadAddedToken(const Json& entry, const std::string& where) const {
    if (!entry.is_object()) return Bad(where + " is not an object");
    const std::optional<int32_t> id = IdOf(At(entry, "id"));
    if (!id) return Bad(where + ".id is not an integer in [0, 2^20)");
    if (!At(entry, "content").is_string()) return Bad(where + ".content is not a string");
    for (const char* key : {"special", "normalized", "single_word", "lstrip", "rstrip"}) {
      const Json& value = At(entry, key);
      if (!value.is_null() && !value.is_boolean()) {
        return Bad(where + "." + key + " must be true or false");
      }
    }
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (At(entry, key) == true) return Unsupported(where + "." + key + " is not supported");
    }
    AddedToken token;
    token.id = *id;
    token.content = entry["content"].get<std::string>();
    token.special = At(entry, "special") == true;
    // As the library has it when a file does not say.
    const Json& normalized = At(entry, "normalized");
    token.normalized = normalized.is_null() ? !token.special : normalized.get<bool>();
    return token;
  }

  const Json& json_;
  const std::string& what_;
  TokenizerJson out_;
  std::unordered_map<std::string_view, int32_t> ids_;  // by spelling; views into json_
  std::unordered_set<int32_t> made_;                   // ids that text can become
};

}  // namespace

Result<TokenizerJson> ParseTokenizerJson(std::string_view text, const std::string& what) {
  if (text.size() > kMaxTokenizerJsonBytes) {
    return Fail(ErrorCode::kCorrupt, what + " is larger than 64 MiB",
                "copy the tokenizer.json of the model again");
  }
  Result<Json> json = ParseStrictJson(text, what, kMaxDepth);
  if (!json) return Fail(json.error());
  return Reader(*json, what).Read();
}

}  // namespace mk
