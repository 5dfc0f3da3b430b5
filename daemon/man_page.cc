// microkimid(1), from the source of `microkimid --help` and from the keys of the config file.

#include <string>
#include <string_view>

#include "cli/config_man_page.h"
#include "cli/roff.h"
#include "daemon/help.h"
#include "daemon/options.h"
#include "protocol/version.h"

namespace mk::daemon {
namespace {

using cli::Bold;
using cli::Italic;
using cli::Roff;
using cli::Section;
using cli::Tagged;

std::string Lines(const std::string& title, std::span<const HelpLine> lines) {
  std::string text = Section(title);
  for (const HelpLine& line : lines) text += Tagged(Bold(line.term), Roff(line.text) + ".");
  return text;
}

std::string OptionsSection() {
  std::string text = Section("OPTIONS");
  for (const cli::OptionInfo& option : DescribeOptions()) {
    text += Tagged(cli::OptionTag(option), Roff(option.doc) + ".");
  }
  return text;
}

std::string ConfigSection() {
  return Section("CONFIGURATION") + Roff("The config file is TOML; ") +
         Bold("microkimi-config.toml") +
         Roff(
             "(5) describes its keys, which are listed here too. Options of the command line have "
             "the last word.\n") +
         cli::ConfigKeyList();
}

std::string ServiceSection() {
  return Section("SERVICE") + Bold("mk service install") +
         Roff(
             " writes microkimid.socket and microkimid.service for systemd's user manager and "
             "enables the socket: the first call of mk starts the daemon, and it is started anew "
             "when it fails or hangs. `systemctl --user reload microkimid` makes it read its "
             "config file again. Where no systemd runs, mk starts the daemon by itself.\n");
}

std::string ExamplesSection() {
  std::string text = Section("EXAMPLES");
  for (const HelpLine& line : ExampleLines())
    text += Tagged(Bold(line.term), Roff(line.text) + ".");
  return text;
}

}  // namespace

std::string ManPage() {
  std::string text = ".TH MICROKIMID 1 \"\" \"microkimi " + Roff(std::string(protocol::Version())) +
                     "\" \"User Commands\"\n";
  text +=
      Section("NAME") + "microkimid \\- " + Roff("daemon that holds language models for mk") + "\n";
  text += Section("SYNOPSIS") + Bold("microkimid") + " [" + Italic("OPTIONS") + "]\n";
  text += Section("DESCRIPTION") + Bold("microkimid") + Roff(std::string(" ") + kPurpose) +
          Roff(" One daemon serves a user; mk starts it when it is needed.\n");
  text += OptionsSection();
  text += ConfigSection();
  text += ServiceSection();
  text += Lines("SIGNALS", SignalLines());
  text += Lines("ENVIRONMENT", EnvironmentLines());
  text += Lines("FILES", FileLines());
  text += Lines("EXIT STATUS", ExitLines());
  text += ExamplesSection();
  text += Section("SEE ALSO") + Bold("mk") + "(1), " + Bold("microkimi\\-config.toml") + "(5)\n";
  return text;
}

}  // namespace mk::daemon
