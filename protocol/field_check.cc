#include "protocol/field_check.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "protocol/session_messages.h"
#include "protocol/utf8.h"

namespace mk::protocol {
namespace {

// `name` may come from the message, so it is fit to be shown.
tl::unexpected<Error> Bad(const std::string& name, const std::string& problem,
                          std::string hint = {}) {
  return Fail(ErrorCode::kBadRequest, "`" + name + "` " + problem, std::move(hint),
              {{"field", name}});
}

// Shortest decimal form; integers without an exponent.
std::string NumberText(double value) {
  char buffer[32];
  const bool whole = std::abs(value) < 1e15 && value == std::trunc(value);
  const auto end =
      whole ? std::to_chars(buffer, buffer + sizeof(buffer), static_cast<long long>(value))
            : std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, end.ptr);
}

// A key as it may be shown: short, without control characters.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, 40));
  shown.resize(std::min(shown.size(), FindInvalidUtf8(shown)));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  if (text.size() > 40) shown += "...";
  return shown;
}

bool HasControlCharacter(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 0x20 || c == 0x7F; });
}

bool IsChoice(std::string_view choices, std::string_view value) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

Status CheckForm(std::string_view value, TextForm form, const std::string& name) {
  if (form == TextForm::kAny) return {};
  if (form == TextForm::kLine) {
    if (HasControlCharacter(value)) return Bad(name, "holds control characters");
    return {};
  }
  if (form == TextForm::kSession) {
    if (value.empty() || IsSessionName(value)) return {};
    return Bad(name, "is no name of a session: \"" + Shown(value) + "\"",
               "names are up to " + std::to_string(kMaxSessionNameBytes) +
                   " letters, digits, '.', '_' and '-', with a letter or a digit first");
  }
  if (value.find('\0') != std::string_view::npos) return Bad(name, "holds a zero byte");
  if (value.empty() || value.front() == '/') return {};
  if (form == TextForm::kPath || value.find('/') != std::string_view::npos) {
    return Bad(name, "is a relative path: " + Shown(value),
               "give an absolute path; the daemon does not know the client's folder");
  }
  return {};
}

}  // namespace

std::string RangeText(const Rule& rule) {
  if (!rule.choices.empty()) {
    std::string text(rule.choices);
    if (text.starts_with('|')) text.erase(0, 1);
    for (size_t bar = text.find('|'); bar != std::string::npos; bar = text.find('|', bar)) {
      text.replace(bar, 1, ", ");
    }
    return text;
  }
  if (!rule.bounded) return {};
  if (rule.above_min) {
    return "above " + NumberText(rule.min) + ", at most " + NumberText(rule.max);
  }
  return NumberText(rule.min) + " to " + NumberText(rule.max);
}

Status WrongType(const std::string& name, std::string_view wanted, std::string_view found) {
  return Bad(name, "must be " + std::string(wanted) + ", not " + std::string(found));
}

std::string FieldName(const std::string& context, std::string_view key) {
  return (context.empty() ? "" : context + ".") + Shown(key);
}

Status UnknownField(const std::string& context, std::string_view key) {
  return Bad(FieldName(context, key), "is no field that is known here");
}

Status DoubledField(const std::string& context, std::string_view key) {
  return Bad(FieldName(context, key), "is given twice", "give it once");
}

Status MissingField(const std::string& context, std::string_view key) {
  return Bad(FieldName(context, key), "is missing");
}

Status TooManyItems(const std::string& name, size_t found, size_t allowed) {
  return Bad(
      name, "has " + std::to_string(found) + " items, " + std::to_string(allowed) + " are allowed");
}

Status OutOfRange(const std::string& name, double found, const Rule& rule, double low,
                  double high) {
  const std::string range =
      rule.bounded ? RangeText(rule) : NumberText(low) + " to " + NumberText(high);
  return Bad(name, "must be " + range + ", not " + NumberText(found));
}

Status CheckNumber(double value, const Rule& rule, const std::string& name) {
  if (!rule.bounded) return {};
  const bool above = rule.above_min ? value > rule.min : value >= rule.min;
  if (above && value <= rule.max) return {};
  return OutOfRange(name, value, rule, rule.min, rule.max);
}

Status CheckText(std::string_view value, const Rule& rule, const std::string& name) {
  if (rule.not_empty && value.empty()) return Bad(name, "is empty");
  if (rule.max_bytes != 0 && value.size() > rule.max_bytes) {
    return Bad(name, "has " + std::to_string(value.size()) + " bytes, " +
                         std::to_string(rule.max_bytes) + " are allowed");
  }
  if (!rule.choices.empty() && !IsChoice(rule.choices, value)) {
    return Bad(name, "is \"" + Shown(value) + "\"", "one of: " + RangeText(rule));
  }
  return CheckForm(value, rule.form, name);
}

}  // namespace mk::protocol
