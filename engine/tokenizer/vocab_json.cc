#include "engine/tokenizer/vocab_json.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/strict_json.h"
#include "engine/tokenizer/rank_table.h"

namespace mk {
namespace {

using Json = nlohmann::json;

constexpr size_t kDefaultSpecials = 8;
constexpr size_t kMaxVocab = kMaxRanks + 256;

// Reads one vocabulary object; the first problem found ends the reading.
class Reader {
 public:
  Reader(const Json& json, const std::string& what) : json_(json), what_(what) {}

  Result<VocabJson> Read() {
    if (!json_.is_object()) return Bad("is not an object");
    for (auto step : {&Reader::ReadFormat, &Reader::ReadTable, &Reader::ReadSize,
                      &Reader::ReadSpecials, &Reader::ReadBase, &Reader::ReadDialect}) {
      if (Status status = (this->*step)(); !status) return Fail(status.error());
    }
    return std::move(vocab_);
  }

 private:
  tl::unexpected<Error> Bad(const std::string& problem) const {
    return Fail(ErrorCode::kCorrupt, what_ + ": " + problem,
                "export or copy the vocabulary again, or name another one with --vocab");
  }

  // An integer in [0, limit), or nothing.
  static std::optional<int64_t> Integer(const Json& value, size_t limit) {
    if (!value.is_number_integer()) return std::nullopt;
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number >= limit) return std::nullopt;
      return static_cast<int64_t>(number);
    }
    const auto number = value.get<int64_t>();
    if (number < 0 || static_cast<uint64_t>(number) >= limit) return std::nullopt;
    return number;
  }

  Status ReadString(const char* key, std::string& out) {
    const auto found = json_.find(key);
    if (found == json_.end()) return {};
    if (!found->is_string()) return Bad(std::string("\"") + key + "\" is not a string");
    out = found->get<std::string>();
    return {};
  }

  Status ReadFormat() {
    std::string format;
    if (Status status = ReadString("format", format); !status) return status;
    if (format.empty()) {
      vocab_.format = json_.contains("base") ? VocabFormat::kOwn : VocabFormat::kLegacyRemap;
    } else if (format == "microkimi-vocab-remap-1") {
      vocab_.format = VocabFormat::kRemap;
    } else if (format == "microkimi-vocab-own-1") {
      vocab_.format = VocabFormat::kOwn;
    } else {
      return Fail(ErrorCode::kUnsupported, what_ + ": unknown vocabulary format \"" + format + "\"",
                  "use a newer microkimi or convert the file");
    }
    return {};
  }

  Status ReadTable() {
    const auto table = json_.find("nano_to_kimi");
    if (table == json_.end() || !table->is_array() || table->empty()) {
      return Bad("\"nano_to_kimi\" must be an array of token ids");
    }
    if (table->size() > kMaxRanks) return Bad("\"nano_to_kimi\" is too long");
    const bool own = vocab_.format == VocabFormat::kOwn;
    const size_t limit = own ? table->size() : static_cast<size_t>(kKimiVocab);
    std::vector<bool> seen(limit);
    vocab_.full_ids.reserve(table->size());
    for (const Json& entry : *table) {
      const std::string where = "nano_to_kimi[" + std::to_string(vocab_.full_ids.size()) + "]";
      const std::optional<int64_t> id = Integer(entry, limit);
      if (!id) return Bad(where + " is not an integer in [0, " + std::to_string(limit) + ")");
      const auto index = static_cast<size_t>(*id);
      if (seen[index]) return Bad(where + " repeats id " + std::to_string(*id));
      if (own && index != vocab_.full_ids.size()) {
        return Bad(where + " must be its own index: the vocabulary is the model's own");
      }
      seen[index] = true;
      vocab_.full_ids.push_back(static_cast<int32_t>(*id));
    }
    return {};
  }

  Status ReadSize() {
    vocab_.vocab_size = vocab_.full_ids.size() + kDefaultSpecials;
    const auto size = json_.find("vocab_size");
    if (size == json_.end()) return {};
    const std::optional<int64_t> value = Integer(*size, kMaxVocab + 1);
    if (!value || static_cast<size_t>(*value) < vocab_.full_ids.size()) {
      return Bad("\"vocab_size\" must be an integer from the length of nano_to_kimi (" +
                 std::to_string(vocab_.full_ids.size()) + ") to " + std::to_string(kMaxVocab));
    }
    vocab_.vocab_size = static_cast<size_t>(*value);
    return {};
  }

  Status ReadSpecials() {
    const auto specials = json_.find("specials");
    if (specials == json_.end() || !specials->is_object()) {
      return Bad("\"specials\" must be an object");
    }
    SpecialTokens& s = vocab_.specials;
    const std::array<std::pair<const char*, int32_t*>, 8> fields = {{{"bos", &s.bos},
                                                                     {"eos", &s.eos},
                                                                     {"open", &s.open},
                                                                     {"close", &s.close},
                                                                     {"sep", &s.sep},
                                                                     {"end_of_msg", &s.end_of_msg},
                                                                     {"unk", &s.unk},
                                                                     {"pad", &s.pad}}};
    std::vector<int32_t> taken;
    for (const auto& [name, target] : fields) {
      const auto entry = specials->find(name);
      if (entry == specials->end() && target == &s.pad) continue;
      const std::string where = std::string("specials.") + name;
      if (entry == specials->end()) return Bad(where + " is missing");
      const std::optional<int64_t> id = Integer(*entry, vocab_.vocab_size);
      if (!id) {
        return Bad(where + " is not an id below vocab_size " + std::to_string(vocab_.vocab_size));
      }
      *target = static_cast<int32_t>(*id);
      if (std::find(taken.begin(), taken.end(), *target) != taken.end()) {
        return Bad(where + " repeats id " + std::to_string(*id));
      }
      taken.push_back(*target);
      const auto index = static_cast<size_t>(*id);
      if (index < vocab_.full_ids.size() && !IsFullSpecial(vocab_.full_ids[index])) {
        return Bad(where + " = " + std::to_string(*id) + " is also an ordinary token");
      }
    }
    return {};
  }

  bool IsFullSpecial(int32_t full_id) const {
    return vocab_.format != VocabFormat::kOwn && full_id >= kKimiFirstSpecial;
  }

  Status ReadBase() {
    if (Status status = ReadString("base", vocab_.base); !status) return status;
    if (Status status = ReadString("base_sha256", vocab_.base_sha256); !status) return status;
    const bool own = vocab_.format == VocabFormat::kOwn;
    if (own && vocab_.base.empty()) return Bad("\"base\" must name the rank file");
    if (vocab_.base == "." || vocab_.base == ".." ||
        vocab_.base.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
      return Bad("\"base\" must be a file name in the same folder");
    }
    const bool hex = vocab_.base_sha256.size() == 64 &&
                     vocab_.base_sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!hex && (own || !vocab_.base_sha256.empty())) {
      return Bad("\"base_sha256\" must be 64 lower-case hex digits");
    }
    return {};
  }

  Status ReadDialect() {
    vocab_.dialect = vocab_.format == VocabFormat::kOwn ? ChatDialect::kK3 : ChatDialect::kNanoSft;
    std::string name;
    if (Status status = ReadString("chat_dialect", name); !status) return status;
    if (name.empty()) return {};
    if (name == "none") {
      vocab_.dialect.reset();
      return {};
    }
    Result<ChatDialect> dialect = ParseChatDialect(name);
    if (!dialect) return Bad(dialect.error().message);
    if (*dialect == ChatDialect::kDsv4) return Bad("\"chat_dialect\" dsv4 needs a tokenizer.json");
    vocab_.dialect = *dialect;
    return {};
  }

  const Json& json_;
  const std::string& what_;
  VocabJson vocab_;
};

}  // namespace

Result<VocabJson> ParseVocabJson(std::string_view text, const std::string& what) {
  Result<Json> json = ParseStrictJson(text, what, 8);
  if (!json) return Fail(json.error());
  return Reader(*json, what).Read();
}

}  // namespace mk
