// JSON as values and structs with a schema: of the exact type, or refused.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "client/json_format.h"

namespace mk::client {

// Arrays and objects inside one another, without parsing: of what is no JSON, some number.
size_t JsonDepth(std::string_view text);

inline bool Assign(const Json& json, bool& value) {
  if (json.is_boolean()) value = json.get<bool>();
  return json.is_boolean();
}
inline bool Assign(const Json& json, double& value) {
  if (json.is_number()) value = json.get<double>();
  return json.is_number();
}
inline bool Assign(const Json& json, std::string& value) {
  if (json.is_string()) value = json.get<std::string>();
  return json.is_string();
}
template <typename T>
requires(std::is_integral_v<T>) bool Assign(const Json& json, T& value) {
  if (!json.is_number_unsigned()) return false;
  const auto number = json.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
  value = static_cast<T>(number);
  return true;
}
template <typename T>
bool Assign(const Json& json, std::vector<T>& value);
template <typename T>
bool Assign(const Json& json, std::optional<T>& value);
template <protocol::HasSchema S>
bool Assign(const Json& json, S& value);

template <typename T>
bool Assign(const Json& json, std::vector<T>& value) {
  if (!json.is_array()) return false;
  value.clear();
  return std::all_of(json.begin(), json.end(),
                     [&](const Json& item) { return Assign(item, value.emplace_back()); });
}
template <typename T>
bool Assign(const Json& json, std::optional<T>& value) {
  return Assign(json, value.emplace());
}

// Sets the field of this name. Nothing: there is none; else whether the value is of its type.
template <typename S>
std::optional<bool> AssignField(std::string_view name, const Json& json, S& target) {
  std::optional<bool> assigned;
  protocol::ForEachField<S>([&](const auto& field) {
    if constexpr (requires { field.name; }) {
      if (field.name == name) assigned = Assign(json, target.*field.member);
    } else if (!assigned) {
      assigned = AssignField(name, json, target.*field.member);
    }
  });
  return assigned;
}

// An object with the fields of the schema and no others; those that are required are there.
template <protocol::HasSchema S>
bool Assign(const Json& json, S& value) {
  if (!json.is_object()) return false;
  for (const auto& [name, field] : json.items()) {
    if (!AssignField(name, field, value).value_or(false)) return false;
  }
  bool complete = true;
  protocol::ForEachField<S>([&](const auto& field) {
    if constexpr (requires { field.name; }) {
      if (field.required && !json.contains(std::string(field.name))) complete = false;
    }
  });
  return complete;
}

}  // namespace mk::client
