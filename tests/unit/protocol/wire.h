// Messages made with another msgpack library, to be changed at will.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "protocol/messages.h"

namespace mk::protocol::testing {

using nlohmann::json;

inline std::string Pack(const json& value) {
  const auto bytes = json::to_msgpack(value);
  return std::string(bytes.begin(), bytes.end());
}

inline json RequestJson(const std::string& op, json args) {
  return {{"v", 1}, {"id", 7}, {"op", op}, {"args", std::move(args)}};
}

// The error of a request that must be refused; "" when it was taken.
inline std::string RefusalOf(const std::string& bytes) {
  const auto request = DecodeRequest(bytes);
  return request ? std::string() : request.error().error.message;
}

}  // namespace mk::protocol::testing
