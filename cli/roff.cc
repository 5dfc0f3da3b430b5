#include "cli/roff.h"

namespace mk::cli {

std::string Roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '\\':
        escaped += "\\e";
        break;
      case '-':
        escaped += "\\-";
        break;
      case '\'':
        escaped += "\\(aq";
        break;
      case '`':
        escaped += "\\(ga";
        break;
      case '^':
        escaped += "\\(ha";
        break;
      case '~':
        escaped += "\\(ti";
        break;
      default:
        escaped += c;
    }
  }
  const bool request = escaped.starts_with('.');
  return request ? "\\&" + escaped : escaped;
}

std::string Bold(const std::string& text) {
  return "\\fB" + Roff(text) + "\\fR";
}
std::string Italic(const std::string& text) {
  return "\\fI" + Roff(text) + "\\fR";
}
std::string Section(const std::string& title) {
  return ".SH " + title + "\n";
}
std::string Tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + text + "\n";
}

std::string OptionTag(const OptionInfo& option) {
  std::string tag;
  for (const std::string& name : option.names) {
    tag += (tag.empty() ? "" : ", ") + (option.positional ? Italic(name) : Bold(name));
  }
  if (!option.positional && !option.value.empty()) tag += " " + Italic(option.value);
  return tag;
}

}  // namespace mk::cli
