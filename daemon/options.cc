#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/help.h"

namespace mk::daemon {
namespace {

std::string Absolute(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// The command line, and what its values are read into.
struct Raw {
  Options options;
  bool man = false;
};

void AddPlaces(CLI::App& app, Raw& raw) {
  app.add_option("--socket", raw.options.socket,
                 "Path of the socket (default: MICROKIMI_SOCKET, "
                 "then $XDG_RUNTIME_DIR/microkimi)")
      ->type_name("PATH");
  app.add_option("--config", raw.options.config_file,
                 "Config file (default: ~/.config/microkimi/config.toml)")
      ->type_name("PATH");
  app.add_flag("--foreground", raw.options.foreground,
               "Do not go into the background; log to standard error");
  app.add_option("--ready-fd", raw.options.ready_fd,
                 "Write \"ready\" or an error line to this descriptor, and stay in the foreground")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20).description(""));
}

// "memory budget; auto: ..." as it stands in the help.
std::string DocOf(const cli::ConfigKey& key) {
  std::string doc = key.text;
  doc[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(doc[0])));
  return doc + " (default " + key.fallback + ")";
}

// The keys of the config file that have an option.
void AddSettings(CLI::App& app, Raw& raw) {
  for (const cli::ConfigKey& key : cli::ConfigKeys()) {
    if (key.option == nullptr) continue;
    app.add_option_function<std::string>(
           key.option,
           [&raw, &key](const std::string& text) {
             auto value = cli::ParseConfigValue(key, text);
             if (!value) {
               throw CLI::ValidationError(
                   key.option, value.error().message + "; expected: " + value.error().wanted);
             }
             raw.options.overrides[&key] = std::move(*value);
           },
           DocOf(key))
        ->type_name(key.value_name);
  }
}

void SetUp(CLI::App& app, Raw& raw, const std::string& version) {
  app.set_version_flag("--version", version, "Print the version and leave");
  AddPlaces(app, raw);
  AddSettings(app, raw);
  app.add_flag("--man", raw.man)->group("");  // the build writes the manual with it
  app.footer(HelpFooter());
}

Options Taken(Raw raw) {
  Options options = std::move(raw.options);
  options.socket = Absolute(options.socket);
  options.config_file = Absolute(options.config_file);
  return options;
}

}  // namespace

std::variant<Options, int> ParseOptions(int argc, const char* const* argv,
                                        const std::string& version) {
  Raw raw;
  raw.options.config_file = ConfigFile().string();
  CLI::App app(std::string("microkimid: ") + kPurpose, "microkimid");
  SetUp(app, raw, version);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (raw.man) {
    std::fputs(ManPage().c_str(), stdout);
    return 0;
  }
  return Taken(std::move(raw));
}

std::vector<cli::OptionInfo> DescribeOptions() {
  Raw raw;
  CLI::App app;
  SetUp(app, raw, {});
  std::vector<cli::OptionInfo> all;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) all.push_back(cli::DescribeOption(*option));
  }
  return all;
}

Config WithOverrides(Config config, const Options& options) {
  for (const auto& [key, value] : options.overrides) SetConfig(config, *key, value);
  return config;
}

}  // namespace mk::daemon
