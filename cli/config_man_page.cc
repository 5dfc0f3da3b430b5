#include "cli/config_man_page.h"

#include "cli/config_keys.h"
#include "cli/roff.h"

namespace mk::cli {
namespace {

std::string Sentence(const std::string& text) {
  return Roff(text) + ".";
}

std::string Example() {
  std::string text = Section("EXAMPLE") + ".nf\n";
  for (const ConfigKey& key : ConfigKeys()) {
    text += Roff(std::string("# ") + key.text) + "\n";
    text += Roff(std::string(key.name) + " = " + key.example) + "\n";
  }
  return text + ".fi\n";
}

}  // namespace

std::string ConfigKeyList() {
  std::string text;
  for (const ConfigKey& key : ConfigKeys()) {
    std::string doc = Sentence(key.text);
    doc += " " + Sentence("Expected: " + WantedOf(key));
    if (key.fallback[0] != '\0') doc += " " + Sentence(std::string("Default: ") + key.fallback);
    if (!key.live) doc += " " + Roff("A change counts from the next start on.");
    if (key.option != nullptr) doc += " Option of microkimid: " + Bold(key.option) + ".";
    text += Tagged(Bold(std::string(key.name) + " = " + key.example), doc);
  }
  return text;
}

std::string ConfigManPage(const std::string& version) {
  std::string text =
      ".TH MICROKIMI\\-CONFIG.TOML 5 \"\" \"microkimi " + Roff(version) + "\" \"File Formats\"\n";
  text += Section("NAME") + "microkimi\\-config.toml \\- settings of microkimid\n";
  text += Section("SYNOPSIS") + Italic("$XDG_CONFIG_HOME/microkimi/config.toml") + "\n.br\n" +
          Italic("~/.config/microkimi/config.toml") + "\n";
  text += Section("DESCRIPTION") +
          Roff("The file is TOML. The daemon reads it when it starts, and again on SIGHUP or ") +
          Bold("mk config reload") +
          Roff(
              ". A key that is not known is a warning in the log; a value of the wrong kind is an "
              "error, and the file is not used. Options of microkimid have the last word. A "
              "missing file is an empty one.") +
          "\n.PP\n";
  text += Bold("mk config") + " shows what counts and from where, " + Bold("mk config set") + " " +
          Italic("KEY VALUE") + " changes a key and leaves the rest of the file as it is, " +
          Bold("mk config check") + " finds mistakes.\n";
  text += Section("KEYS") + ConfigKeyList();
  text += Example();
  text += Section("SEE ALSO") + Bold("mk") + "(1), " + Bold("microkimid") + "(1)\n";
  return text;
}

}  // namespace mk::cli
