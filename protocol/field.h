// How a message's fields are declared: a tuple of descriptors per struct, from which encoding,
// decoding, its checks and the listing of fields are made.

#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>

namespace mk::protocol {

// What a text may be.
enum class TextForm {
  kAny,
  kPath,     // empty or an absolute path
  kModel,    // empty, a name without '/', or an absolute path
  kLine,     // no control characters
  kSession,  // empty or a name of a session
};

// What a value must satisfy beside its type. Lists: the rule holds for every item, `items` for
// their number.
struct Rule {
  double min = 0;
  double max = 0;
  bool bounded = false;    // min and max hold
  bool above_min = false;  // min itself is excluded
  size_t max_bytes = 0;    // text; 0: the limits of messages only
  size_t items = 0;        // lists; 0: the limits of messages only
  bool not_empty = false;  // text, or each text of a list
  bool binary = false;     // a std::string that holds bytes, not text
  TextForm form = TextForm::kAny;
  std::string_view choices;  // "a|b|c"; an empty alternative stands for empty text

  constexpr Rule Range(double low, double high) const {
    Rule rule = *this;
    rule.min = low;
    rule.max = high;
    rule.bounded = true;
    return rule;
  }
  constexpr Rule Above(double low, double high) const {
    Rule rule = Range(low, high);
    rule.above_min = true;
    return rule;
  }
  constexpr Rule Bytes(size_t most) const {
    Rule rule = *this;
    rule.max_bytes = most;
    return rule;
  }
  constexpr Rule Items(size_t most) const {
    Rule rule = *this;
    rule.items = most;
    return rule;
  }
  constexpr Rule NotEmpty() const {
    Rule rule = *this;
    rule.not_empty = true;
    return rule;
  }
  constexpr Rule Binary() const {
    Rule rule = *this;
    rule.binary = true;
    return rule;
  }
  constexpr Rule Form(TextForm what) const {
    Rule rule = *this;
    rule.form = what;
    return rule;
  }
  constexpr Rule OneOf(std::string_view alternatives) const {
    Rule rule = *this;
    rule.choices = alternatives;
    return rule;
  }
};

template <typename Struct, typename Member>
struct Field {
  std::string_view name;
  Member Struct::*member;
  bool required;
  Rule rule;
  std::string_view doc;
};

// Fields of a member that stand beside the struct's own.
template <typename Struct, typename Member>
struct Inlined {
  Member Struct::*member;
};

template <typename Struct, typename Member>
constexpr Field<Struct, Member> Required(std::string_view name, Member Struct::*member,
                                         std::string_view doc, Rule rule = {}) {
  return {name, member, true, rule, doc};
}
template <typename Struct, typename Member>
constexpr Field<Struct, Member> Optional(std::string_view name, Member Struct::*member,
                                         std::string_view doc, Rule rule = {}) {
  return {name, member, false, rule, doc};
}
// Without a text of their own: fields of replies.
template <typename Struct, typename Member>
constexpr Field<Struct, Member> Required(std::string_view name, Member Struct::*member,
                                         Rule rule = {}) {
  return {name, member, true, rule, {}};
}
template <typename Struct, typename Member>
constexpr Field<Struct, Member> Optional(std::string_view name, Member Struct::*member,
                                         Rule rule = {}) {
  return {name, member, false, rule, {}};
}
template <typename Struct, typename Member>
constexpr Inlined<Struct, Member> Inline(Member Struct::*member) {
  return {member};
}

// Specialised in request_fields.h and reply_fields.h: `static constexpr auto fields =
// std::make_tuple(...)`.
template <typename Struct>
struct Schema;

template <typename T>
concept HasSchema = requires {
  Schema<T>::fields;
};

// Calls visit(field) for every field of a schema, in order; for an inlined member, visit(inlined).
template <typename Struct, typename Visit>
constexpr void ForEachField(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, Schema<Struct>::fields);
}

}  // namespace mk::protocol
