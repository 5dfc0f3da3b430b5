#include "client/man_page.h"

#include "cli/roff.h"
#include "client/description.h"
#include "client/help.h"
#include "protocol/version.h"

namespace mk::client {
namespace {

using cli::Bold;
using cli::Italic;
using cli::OptionTag;
using cli::Roff;
using cli::Section;
using cli::Tagged;

// "mk run [OPTIONS] [prompt]"
std::string Synopsis(const CommandInfo& command) {
  std::string text = Bold("mk " + command.name) + " [" + Italic("OPTIONS") + "]";
  for (const OptionInfo& one : command.positionals) {
    const std::string name = Italic(one.names[0]) + (one.many ? "..." : "");
    text += one.required ? " " + name : " [" + name + "]";
  }
  return text;
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
