#include "client/json_format.h"

namespace mk::client {

Json ErrorToJson(const protocol::Error& error) {
  Json inner = {{"code", std::string(protocol::NameOf(error.code))}, {"message", error.message}};
  if (!error.hint.empty()) inner["hint"] = error.hint;
  if (!error.details.empty()) inner["details"] = ToJson(error.details);
  return {{"error", std::move(inner)}};
}

std::string JsonLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mk::client
