// msgpack maps as structs with a Schema: every field is checked for presence, type and range.
//
// Reads objects of messages that Scan() has passed.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/error.h"
#include "protocol/field.h"
#include "protocol/field_check.h"

namespace mk::protocol {

enum class UnknownFields { kRefuse, kIgnore };

class ValueReader {
 public:
  explicit ValueReader(UnknownFields unknown) : unknown_(unknown) {}

  // Fills `out` from a map. `context` stands before the field's name in errors, as in
  // "done.models[3].path"; it is empty for a request, whose fields are named as their sender does.
  template <HasSchema T>
  Status Read(const msgpack::object& from, T& out, const std::string& context) const {
    if (from.type != msgpack::type::MAP) return WrongType(context, "a map", KindOf(from));
    std::vector<const msgpack::object*> values(CountOf<T>(), nullptr);
    for (uint32_t i = 0; i < from.via.map.size; ++i) {
      const msgpack::object_kv& entry = from.via.map.ptr[i];
      const std::string_view key(entry.key.via.str.ptr, entry.key.via.str.size);
      const size_t index = IndexOf<T>(key);
      if (index == values.size()) {
        if (unknown_ == UnknownFields::kIgnore) continue;
        return UnknownField(context, key);
      }
      if (values[index] != nullptr) return DoubledField(context, key);
      values[index] = &entry.val;
    }
    size_t next = 0;
    return ReadFields(values, next, out, context);
  }

  // "text", "a list": for errors.
  static std::string_view KindOf(const msgpack::object& value);

 private:
  template <typename T>
  static size_t CountOf() {
    return NamesOf<T>().size();
  }
  template <typename T>
  static std::vector<std::string_view> NamesOf() {
    std::vector<std::string_view> names;
    AddNames<T>(names);
    return names;
  }
  template <typename T>
  static void AddNames(std::vector<std::string_view>& names) {
    ForEachField<T>([&](const auto& field) { AddName(names, field); });
  }
  template <typename S, typename M>
  static void AddName(std::vector<std::string_view>& names, const Field<S, M>& field) {
    names.push_back(field.name);
  }
  template <typename S, typename M>
  static void AddName(std::vector<std::string_view>& names, const Inlined<S, M>&) {
    AddNames<M>(names);
  }
  template <typename T>
  static size_t IndexOf(std::string_view key) {
    const std::vector<std::string_view> names = NamesOf<T>();
    size_t index = 0;
    while (index < names.size() && names[index] != key) ++index;
    return index;
  }

  using Values = std::vector<const msgpack::object*>;

  template <typename T>
  Status ReadFields(const Values& values, size_t& next, T& out, const std::string& context) const {
    Status status;
    ForEachField<T>([&](const auto& field) {
      if (status) status = ReadField(values, next, out, field, context);
    });
    return status;
  }
  template <typename S, typename M>
  Status ReadField(const Values& values, size_t& next, S& out, const Inlined<S, M>& field,
                   const std::string& context) const {
    return ReadFields(values, next, out.*field.member, context);
  }
  template <typename S, typename M>
  Status ReadField(const Values& values, size_t& next, S& out, const Field<S, M>& field,
                   const std::string& context) const {
    const msgpack::object* value = values[next++];
    if (value == nullptr) {
      return field.required ? MissingField(context, field.name) : Status();
    }
    return ReadValue(*value, out.*field.member, field.rule, FieldName(context, field.name));
  }

  template <typename T>
  Status ReadValue(const msgpack::object& from, std::optional<T>& out, const Rule& rule,
                   const std::string& name) const {
    return ReadValue(from, out.emplace(), rule, name);
  }
  Status ReadValue(const msgpack::object& from, bool& out, const Rule&,
                   const std::string& name) const {
    if (from.type != msgpack::type::BOOLEAN) return WrongType(name, "true or false", KindOf(from));
    out = from.via.boolean;
    return {};
  }
  Status ReadValue(const msgpack::object& from, double& out, const Rule& rule,
                   const std::string& name) const;
  Status ReadValue(const msgpack::object& from, std::string& out, const Rule& rule,
                   const std::string& name) const;
  Status ReadValue(const msgpack::object& from, Detail& out, const Rule& rule,
                   const std::string& name) const;
  template <std::integral T>
  Status ReadValue(const msgpack::object& from, T& out, const Rule& rule,
                   const std::string& name) const {
    const bool positive = from.type == msgpack::type::POSITIVE_INTEGER;
    const bool negative = from.type == msgpack::type::NEGATIVE_INTEGER;
    if (!positive && !negative) return WrongType(name, "an integer", KindOf(from));
    const bool fits = positive ? std::in_range<T>(from.via.u64) : std::in_range<T>(from.via.i64);
    const double number =
        positive ? static_cast<double>(from.via.u64) : static_cast<double>(from.via.i64);
    if (!fits) {
      return OutOfRange(name, number, rule, static_cast<double>(std::numeric_limits<T>::min()),
                        static_cast<double>(std::numeric_limits<T>::max()));
    }
    out = positive ? static_cast<T>(from.via.u64) : static_cast<T>(from.via.i64);
    return CheckNumber(number, rule, name);
  }
  template <typename T>
  Status ReadValue(const msgpack::object& from, std::vector<T>& out, const Rule& rule,
                   const std::string& name) const {
    if (from.type != msgpack::type::ARRAY) return WrongType(name, "a list", KindOf(from));
    const uint32_t size = from.via.array.size;
    if (rule.items != 0 && size > rule.items) return TooManyItems(name, size, rule.items);
    out.clear();
    out.resize(size);
    for (uint32_t i = 0; i < size; ++i) {
      if (Status status = ReadItem(from.via.array.ptr[i], out[i], rule, name, i); !status) {
        return status;
      }
    }
    return {};
  }
  template <typename T>
  Status ReadValue(const msgpack::object& from, std::map<std::string, T>& out, const Rule& rule,
                   const std::string& name) const {
    if (from.type != msgpack::type::MAP) return WrongType(name, "a map", KindOf(from));
    for (uint32_t i = 0; i < from.via.map.size; ++i) {
      const msgpack::object_kv& entry = from.via.map.ptr[i];
      const std::string key(entry.key.via.str.ptr, entry.key.via.str.size);
      if (Status status = ReadValue(entry.val, out[key], rule, FieldName(name, key)); !status) {
        return status;
      }
    }
    return {};
  }
  template <HasSchema T>
  Status ReadValue(const msgpack::object& from, T& out, const Rule&,
                   const std::string& name) const {
    return Read(from, out, name);
  }

  // The common items, ids and weights, without making a name for each.
  template <typename T>
  Status ReadItem(const msgpack::object& from, T& out, const Rule& rule, const std::string& name,
                  uint32_t index) const {
    if constexpr (std::is_same_v<T, int32_t>) {
      if (from.type == msgpack::type::POSITIVE_INTEGER && std::in_range<T>(from.via.u64) &&
          (!rule.bounded || (static_cast<double>(from.via.u64) >= rule.min &&
                             static_cast<double>(from.via.u64) <= rule.max))) {
        out = static_cast<T>(from.via.u64);
        return {};
      }
    }
    return ReadValue(from, out, rule, name + "[" + std::to_string(index) + "]");
  }

  UnknownFields unknown_;
};

}  // namespace mk::protocol
