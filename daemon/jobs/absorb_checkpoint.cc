#include "daemon/jobs/absorb_checkpoint.h"

#include <nlohmann/json.hpp>

namespace mk::daemon {

using nlohmann::json;

std::string Encode(const AbsorbCheckpoint& checkpoint) {
  return json{{"pack", checkpoint.pack},
              {"before", checkpoint.before},
              {"digest", checkpoint.digest},
              {"parents", checkpoint.parents}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<AbsorbCheckpoint> DecodeAbsorbCheckpoint(const std::string& bytes) {
  const json told = json::parse(bytes, nullptr, false);
  if (!told.is_object()) return std::nullopt;
  const auto number = [&](const char* name) {
    return told.contains(name) && told[name].is_number_unsigned();
  };
  if (!number("before") || !number("digest")) return std::nullopt;
  if (!told.contains("pack") || !told["pack"].is_string()) return std::nullopt;
  if (!told.contains("parents") || !told["parents"].is_array()) return std::nullopt;
  AbsorbCheckpoint checkpoint;
  checkpoint.pack = told["pack"].get<std::string>();
  checkpoint.before = told["before"].get<uint64_t>();
  checkpoint.digest = told["digest"].get<uint64_t>();
  for (const json& parent : told["parents"]) {
    if (!parent.is_string()) return std::nullopt;
    checkpoint.parents.push_back(parent.get<std::string>());
  }
  return checkpoint;
}

}  // namespace mk::daemon
