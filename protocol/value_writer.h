// Structs with a Schema as msgpack maps.

#pragma once

#include <cstdint>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "protocol/field.h"
#include "protocol/utf8.h"

namespace mk::protocol {

// Appends msgpack values to a string.
class ValueWriter {
 public:
  // Text that is not UTF-8 (a file's name in an error, say) would make the receiver refuse the
  // whole message: kReplace puts U+FFFD for its bad bytes. Requests keep it, for the daemon to
  // judge.
  enum class BadText { kKeep, kReplace };
  explicit ValueWriter(BadText bad_text) : bad_text_(bad_text), packer_(sink_) {}

  void Map(size_t entries) { packer_.pack_map(static_cast<uint32_t>(entries)); }
  void Key(std::string_view key) { Write(key, {}); }

  void Write(bool value, const Rule&) { value ? packer_.pack_true() : packer_.pack_false(); }
  void Write(double value, const Rule&) { packer_.pack_double(value); }
  void Write(int32_t value, const Rule&) { packer_.pack_int32(value); }
  void Write(int64_t value, const Rule&) { packer_.pack_int64(value); }
  void Write(uint32_t value, const Rule&) { packer_.pack_uint32(value); }
  void Write(uint64_t value, const Rule&) { packer_.pack_uint64(value); }
  void Write(std::string_view value, const Rule& rule) {
    if (!rule.binary && bad_text_ == BadText::kReplace &&
        FindInvalidUtf8(value) != std::string_view::npos) {
      return Write(std::string_view(ReplaceInvalidUtf8(value)), rule);
    }
    const auto size = static_cast<uint32_t>(value.size());
    if (rule.binary) {
      packer_.pack_bin(size).pack_bin_body(value.data(), size);
    } else {
      packer_.pack_str(size).pack_str_body(value.data(), size);
    }
  }
  void Write(const std::string& value, const Rule& rule) { Write(std::string_view(value), rule); }

  template <typename T>
  void Write(const std::vector<T>& items, const Rule& rule) {
    packer_.pack_array(static_cast<uint32_t>(items.size()));
    for (const T& item : items) Write(item, rule);
  }
  template <typename T>
  void Write(const std::map<std::string, T>& entries, const Rule& rule) {
    Map(entries.size());
    for (const auto& [key, value] : entries) {
      Key(key);
      Write(value, rule);
    }
  }
  template <typename... T>
  void Write(const std::variant<T...>& value, const Rule& rule) {
    std::visit([&](const auto& inner) { Write(inner, rule); }, value);
  }
  template <HasSchema T>
  void Write(const T& value, const Rule& = {}) {
    Map(CountFields(value));
    WriteFields(value);
  }

  // A struct's entries, without the head of the map.
  template <HasSchema T>
  void WriteFields(const T& value) {
    ForEachField<T>([&](const auto& field) { WriteField(value, field); });
  }
  // Number of entries that WriteFields writes.
  template <HasSchema T>
  static size_t CountFields(const T& value) {
    size_t count = 0;
    ForEachField<T>([&](const auto& field) { count += Count(value, field); });
    return count;
  }

  std::string Take() { return std::move(sink_.bytes); }

 private:
  struct Sink {
    std::string bytes;
    void write(const char* data, size_t size) { bytes.append(data, size); }
  };

  template <typename S, typename M>
  void WriteField(const S& value, const Field<S, M>& field) {
    Key(field.name);
    Write(value.*field.member, field.rule);
  }
  template <typename S, typename M>
  void WriteField(const S& value, const Field<S, std::optional<M>>& field) {
    if (!(value.*field.member)) return;
    Key(field.name);
    Write(*(value.*field.member), field.rule);
  }
  template <typename S, typename M>
  void WriteField(const S& value, const Inlined<S, M>& field) {
    WriteFields(value.*field.member);
  }

  template <typename S, typename M>
  static size_t Count(const S&, const Field<S, M>&) {
    return 1;
  }
  template <typename S, typename M>
  static size_t Count(const S& value, const Field<S, std::optional<M>>& field) {
    return (value.*field.member) ? 1 : 0;
  }
  template <typename S, typename M>
  static size_t Count(const S& value, const Inlined<S, M>& field) {
    return CountFields(value.*field.member);
  }

  const BadText bad_text_;
  Sink sink_;
  msgpack::packer<Sink> packer_;
};

}  // namespace mk::protocol
