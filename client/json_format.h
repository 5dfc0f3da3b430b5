// Replies as JSON: the fields of their schemas under the same names.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/reply_fields.h"

namespace mk::client {

using Json = nlohmann::ordered_json;

inline Json ToJson(bool value) {
  return value;
}
inline Json ToJson(double value) {
  return value;
}
inline Json ToJson(int32_t value) {
  return value;
}
inline Json ToJson(int64_t value) {
  return value;
}
inline Json ToJson(uint32_t value) {
  return value;
}
inline Json ToJson(uint64_t value) {
  return value;
}
inline Json ToJson(const std::string& value) {
  return value;
}
template <typename T>
Json ToJson(const std::vector<T>& items);
template <typename T>
Json ToJson(const std::map<std::string, T>& entries);
template <typename... T>
Json ToJson(const std::variant<T...>& value);
template <protocol::HasSchema T>
Json ToJson(const T& value);

template <typename T>
Json ToJson(const std::vector<T>& items) {
  Json array = Json::array();
  for (const T& item : items) array.push_back(ToJson(item));
  return array;
}

template <typename T>
Json ToJson(const std::map<std::string, T>& entries) {
  Json object = Json::object();
  for (const auto& [key, value] : entries) object[key] = ToJson(value);
  return object;
}

template <typename... T>
Json ToJson(const std::variant<T...>& value) {
  return std::visit([](const auto& inner) { return ToJson(inner); }, value);
}

template <typename S, typename M>
void AddField(Json& object, const S& value, const protocol::Field<S, M>& field) {
  object[std::string(field.name)] = ToJson(value.*field.member);
}
template <typename S, typename M>
void AddField(Json& object, const S& value, const protocol::Field<S, std::optional<M>>& field) {
  if (value.*field.member) object[std::string(field.name)] = ToJson(*(value.*field.member));
}

template <typename S, typename M>
void AddField(Json& object, const S& value, const protocol::Inlined<S, M>& field) {
  object.update(ToJson(value.*field.member));
}

template <protocol::HasSchema T>
Json ToJson(const T& value) {
  Json object = Json::object();
  protocol::ForEachField<T>([&](const auto& field) { AddField(object, value, field); });
  return object;
}

// {"error": {"code", "message", "hint", "details"}}
Json ErrorToJson(const protocol::Error& error);

// One line with its newline.
std::string JsonLine(const Json& json);

}  // namespace mk::client
