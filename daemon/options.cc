#include "daemon/options.h"

#include <CLI/CLI.hpp>
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

// Turns one of our parsers into a check of CLI11: an empty string is a pass.
template <typename Parse>
CLI::Validator Checked(Parse parse) {
  return CLI::Validator(
      [parse](std::string& text) {
        auto value = parse(text);
        return value ? std::string() : value.error().ToString();
      },
      "");
}

// The command line, and what its values are read into.
struct Raw {
  Options options;
  std::string idle_exit;
  std::string memory;
  std::string log_level;
  std::string precision;
  int threads = 0;
  int max_batch = 0;
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

void AddSettings(CLI::App& app, Raw& raw) {
  app.add_option("--idle-exit", raw.idle_exit,
                 "Leave after this long without a client: 30m, 2h; -1: never (default)")
      ->type_name("DURATION")
      ->check(Checked(ParseIdleExit));
  app.add_option("--log-level", raw.log_level, "trace, debug, info (default), warn, error, off")
      ->type_name("LEVEL")
      ->check(Checked(CheckLogLevel));
  app.add_option("--threads", raw.threads, "Worker threads (default: one per core)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
  app.add_option("--memory", raw.memory, "Memory budget: 8GiB, auto (default: 3/4 of the machine)")
      ->type_name("SIZE")
      ->check(Checked(ParseBytes));
  app.add_option("--max-batch", raw.max_batch, "Requests that decode in one step (default 8)")
      ->type_name("N")
      ->check(CLI::Range(1, 64).description(""));
  app.add_option("--precision", raw.precision,
                 "Arithmetic of runs that do not say: exact, bf16, q8 (default q8)")
      ->type_name("PRECISION")
      ->check(Checked(CheckPrecision));
}

void SetUp(CLI::App& app, Raw& raw, const std::string& version) {
  app.set_version_flag("--version", version, "Print the version and leave");
  AddPlaces(app, raw);
  AddSettings(app, raw);
  app.add_flag("--man", raw.man)->group("");  // the build writes the manual with it
  app.footer(HelpFooter());
}

Options Taken(const CLI::App& app, Raw raw) {
  Options options = std::move(raw.options);
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  options.socket = Absolute(options.socket);
  options.config_file = Absolute(options.config_file);
  if (given("--idle-exit")) options.idle_exit = *ParseIdleExit(raw.idle_exit);
  if (given("--log-level")) options.log_level = raw.log_level;
  if (given("--threads")) options.threads = raw.threads;
  if (given("--memory")) options.memory = *ParseBytes(raw.memory);
  if (given("--max-batch")) options.max_batch = raw.max_batch;
  if (given("--precision")) options.precision = *CheckPrecision(raw.precision);
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
  return Taken(app, std::move(raw));
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
  if (options.idle_exit) config.idle_exit = *options.idle_exit;
  if (options.log_level) config.log_level = *options.log_level;
  if (options.threads) config.threads = *options.threads;
  if (options.memory) config.memory = *options.memory;
  if (options.max_batch) config.max_batch = *options.max_batch;
  if (options.precision) config.precision = *options.precision;
  return config;
}

}  // namespace mk::daemon
