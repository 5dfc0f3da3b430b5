#include "engine/tokenizer/dsv4_chat_assets.h"

#include <utility>

#include "engine/base/strict_json.h"

namespace mk {

Result<Dsv4ChatAssets> ParseDsv4ChatAssets(std::string_view text, const std::string& what) {
  const auto bad = [&what](const std::string& problem) {
    return Fail(ErrorCode::kCorrupt, what + ": " + problem,
                "copy the chat assets of the model again");
  };
  Result<nlohmann::json> json = ParseStrictJson(text, what, 8);
  if (!json) return Fail(json.error());
  if (!json->is_object()) return bad("it is not an object");
  Dsv4ChatAssets assets;
  if (const auto dialect = json->find("chat_dialect"); dialect != json->end()) {
    if (*dialect != "dsv4" && *dialect != "none") {
      return bad("\"chat_dialect\" must be \"dsv4\" or \"none\"");
    }
    assets.can_chat = *dialect == "dsv4";
  }
  if (const auto effort = json->find("effort"); effort != json->end()) {
    if (!effort->is_object()) return bad("\"effort\" must be an object");
    for (const auto& [name, prefix] : effort->get_ref<const nlohmann::json::object_t&>()) {
      if (name.empty()) return bad("an effort must have a name");
      if (!prefix.is_string()) return bad("effort." + name + " must be a string");
      assets.effort.emplace(name, prefix.get<std::string>());
    }
  }
  return assets;
}

}  // namespace mk
