#include "engine/tokenizer/dsv4_remap.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/strict_json.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace mk {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& json, const std::string& what) : json_(json), what_(what) {}

  Result<Dsv4Remap> Read() {
    if (!json_.is_object()) return Bad("it is not an object");
    for (auto step : {&Reader::ReadTable, &Reader::ReadSize, &Reader::ReadSpecials}) {
      if (Status status = (this->*step)(); !status) return Fail(status.error());
    }
    return std::move(remap_);
  }

 private:
  tl::unexpected<Error> Bad(const std::string& problem) const {
    return Fail(ErrorCode::kCorrupt, what_ + ": " + problem,
                "copy the vocabulary of the model again, or name another one with --vocab");
  }

  static std::optional<int32_t> Below(const Json& value, size_t limit) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= limit) return std::nullopt;
    return static_cast<int32_t>(value.get<uint64_t>());
  }

  Status ReadTable() {
    const auto table = json_.find("nano_to_ds");
    if (table == json_.end() || !table->is_array() || table->empty()) {
      return Bad("\"nano_to_ds\" must be an array of token ids");
    }
    if (table->size() > kMaxTokenizerIds) return Bad("\"nano_to_ds\" is too long");
    std::vector<bool> seen(kMaxTokenizerIds);
    remap_.full_ids.reserve(table->size());
    for (const Json& entry : *table) {
      const std::string where = "nano_to_ds[" + std::to_string(remap_.full_ids.size()) + "]";
      const std::optional<int32_t> id = Below(entry, kMaxTokenizerIds);
      if (!id) return Bad(where + " is not an integer in [0, 2^20)");
      if (seen[static_cast<size_t>(*id)]) return Bad(where + " repeats id " + std::to_string(*id));
      seen[static_cast<size_t>(*id)] = true;
      remap_.full_ids.push_back(*id);
    }
    return {};
  }

  Status ReadSize() {
    const size_t tokens = remap_.full_ids.size();
    const auto size = json_.find("vocab_size");
    const std::optional<int32_t> value =
        size == json_.end() ? std::nullopt : Below(*size, kMaxTokenizerIds + 1);
    if (!value || static_cast<size_t>(*value) < tokens) {
      return Bad("\"vocab_size\" must be an integer from the length of nano_to_ds (" +
                 std::to_string(tokens) + ") to 2^20");
    }
    remap_.vocab_size = static_cast<size_t>(*value);
    return {};
  }

  Status ReadSpecials() {
    const auto specials = json_.find("specials");
    if (specials == json_.end() || !specials->is_object()) {
      return Bad("\"specials\" must be an object");
    }
    SpecialTokens& s = remap_.specials;
    const std::pair<const char*, int32_t*> fields[] = {{"bos", &s.bos},
                                                       {"eos", &s.eos},
                                                       {"unk", &s.unk},
                                                       {"pad", &s.pad},
                                                       {"end_of_msg", &s.end_of_msg}};
    std::vector<int32_t> taken;
    for (const auto& [name, target] : fields) {
      const auto entry = specials->find(name);
      const std::string where = std::string("specials.") + name;
      if (entry == specials->end()) {
        if (target == &s.pad || target == &s.end_of_msg) continue;
        return Bad(where + " is missing");
      }
      const std::optional<int32_t> id = Below(*entry, remap_.vocab_size);
      if (!id || static_cast<size_t>(*id) < remap_.full_ids.size()) {
        return Bad(where + " must be an id behind the tokens, from " +
                   std::to_string(remap_.full_ids.size()) + " and below vocab_size " +
                   std::to_string(remap_.vocab_size));
      }
      const bool ends_too = target == &s.end_of_msg && *id == s.eos;
      if (!ends_too && std::find(taken.begin(), taken.end(), *id) != taken.end()) {
        return Bad(where + " repeats id " + std::to_string(*id));
      }
      *target = *id;
      taken.push_back(*id);
    }
    if (s.end_of_msg < 0) s.end_of_msg = s.eos;
    return {};
  }

  const Json& json_;
  const std::string& what_;
  Dsv4Remap remap_;
};

}  // namespace

Result<Dsv4Remap> ParseDsv4Remap(std::string_view text, const std::string& what) {
  Result<Json> json = ParseStrictJson(text, what, 8);
  if (!json) return Fail(json.error());
  return Reader(*json, what).Read();
}

}  // namespace mk
