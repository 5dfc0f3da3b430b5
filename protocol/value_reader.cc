#include "protocol/value_reader.h"

namespace mk::protocol {

std::string_view ValueReader::KindOf(const msgpack::object& value) {
  switch (value.type) {
    case msgpack::type::NIL:
      return "nil";
    case msgpack::type::BOOLEAN:
      return "true or false";
    case msgpack::type::POSITIVE_INTEGER:
    case msgpack::type::NEGATIVE_INTEGER:
      return "an integer";
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      return "a number";
    case msgpack::type::STR:
      return "text";
    case msgpack::type::BIN:
      return "binary data";
    case msgpack::type::ARRAY:
      return "a list";
    case msgpack::type::MAP:
      return "a map";
    case msgpack::type::EXT:
      return "an extension";
  }
  return "something else";
}

Status ValueReader::ReadValue(const msgpack::object& from, double& out, const Rule& rule,
                              const std::string& name) const {
  switch (from.type) {
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      out = from.via.f64;
      break;
    case msgpack::type::POSITIVE_INTEGER:
      out = static_cast<double>(from.via.u64);
      break;
    case msgpack::type::NEGATIVE_INTEGER:
      out = static_cast<double>(from.via.i64);
      break;
    default:
      return WrongType(name, "a number", KindOf(from));
  }
  if (!std::isfinite(out)) return WrongType(name, "a finite number", "infinite or NaN");
  return CheckNumber(out, rule, name);
}

Status ValueReader::ReadValue(const msgpack::object& from, std::string& out, const Rule& rule,
                              const std::string& name) const {
  if (rule.binary) {
    if (from.type != msgpack::type::BIN) return WrongType(name, "binary data", KindOf(from));
    out.assign(from.via.bin.ptr, from.via.bin.size);
    return {};
  }
  if (from.type != msgpack::type::STR) return WrongType(name, "text", KindOf(from));
  out.assign(from.via.str.ptr, from.via.str.size);
  return CheckText(out, rule, name);
}

Status ValueReader::ReadValue(const msgpack::object& from, Detail& out, const Rule& rule,
                              const std::string& name) const {
  if (from.type == msgpack::type::STR)
    return ReadValue(from, out.emplace<std::string>(), rule, name);
  return ReadValue(from, out.emplace<int64_t>(), rule, name);
}

}  // namespace mk::protocol
