#include "client/man_page.h"

#include "client/description.h"
#include "client/help.h"
#include "protocol/version.h"

namespace mk::client {
namespace {

// Text that roff shows as it is: a hyphen that can be copied, no escapes, no requests.
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
// An indented paragraph with its tag.
std::string Tagged(const std::string& tag, const std::string& text) {
  return ".TP\n" + tag + "\n" + text + "\n";
}

// "mk run [OPTIONS] [prompt]"
std::string Synopsis(const CommandInfo& command) {
  std::string text = Bold("mk " + command.name) + " [" + Italic("OPTIONS") + "]";
  for (const OptionInfo& one : command.positionals) {
    const std::string name = Italic(one.names[0]) + (one.many ? "..." : "");
    text += one.required ? " " + name : " [" + name + "]";
  }
  return text;
}

std::string OptionTag(const OptionInfo& option) {
  std::string tag;
  for (const std::string& name : option.names) {
    tag += (tag.empty() ? "" : ", ") + (option.positional ? Italic(name) : Bold(name));
  }
  if (!option.positional && !option.value.empty()) tag += " " + Italic(option.value);
  return tag;
}

std::string CommandText(const CommandInfo& command) {
  std::string text = ".SS mk " + Roff(command.name) + "\n" + Roff(command.summary) + ".\n";
  text += ".PP\n" + Synopsis(command) + "\n";
  for (const auto* options : {&command.positionals, &command.options}) {
    for (const OptionInfo& option : *options) {
      text += Tagged(OptionTag(option), Roff(option.doc) + ".");
    }
  }
  text += ".PP\n" + std::string(command.examples.size() > 1 ? "Examples" : "Example") +
          ":\n.PP\n.RS 4\n.nf\n";
  for (const std::string& line : command.examples) text += Roff(line) + "\n";
  return text + ".fi\n.RE\n";
}

}  // namespace

std::string ManPage() {
  const std::vector<CommandInfo> commands = DescribeCommands();
  std::string text = ".TH MK 1 \"\" \"microkimi " + Roff(std::string(protocol::Version())) +
                     "\" \"User Commands\"\n";
  text += Section("NAME") + "mk \\- run language models through a daemon that keeps them warm\n";
  text += Section("SYNOPSIS");
  for (const CommandInfo& command : commands) text += Synopsis(command) + "\n.br\n";
  text += Bold("mk help") + " [" + Italic("COMMAND") + "]\n";
  text += Section("DESCRIPTION") + Bold("mk") + " " + Roff(kPurpose) +
          "\nCommands that need the daemon start it when none runs; those that only look never "
          "do.\n";
  text += Section("COMMANDS");
  for (const CommandInfo& command : commands) text += CommandText(command);
  text += Section("EXIT STATUS");
  for (const ExitLine& line : ExitLines()) {
    text += Tagged(Bold(std::to_string(line.code)), Roff(line.text) + ".");
  }
  text += std::string(".PP\n") + kClosedPipe + "\n";
  text += Section("ENVIRONMENT");
  for (const EnvironmentLine& line : EnvironmentLines()) {
    text += Tagged(Bold(line.name), Roff(line.text) + ".");
  }
  return text;
}

}  // namespace mk::client
