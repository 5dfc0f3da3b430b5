#include "daemon/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>

#include "daemon/dirs.h"

namespace mk::daemon {
namespace {

constexpr const char* kFooter = R"(Examples:
  microkimid                          start in the background on the default socket
  microkimid --foreground             stay, log to stderr
  microkimid --socket /run/user/1000/mk2/s --memory 4GiB --idle-exit 30m
  microkimid --precision exact        runs that do not ask for another one are in f32

Exit codes: 0 done (or a daemon runs already), 2 bad command line, 3 could not start.
Files: ~/.config/microkimi/config.toml, ~/.local/state/microkimi/microkimid.log)";

std::string Absolute(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// Turns one of our parsers into a check of CLI11: an empty string is a pass.
template <typename Parse>
CLI::Validator Checked(Parse parse, const char* name) {
  return CLI::Validator(
      [parse](std::string& text) {
        auto value = parse(text);
        return value ? std::string() : value.error().ToString();
      },
      name);
}

}  // namespace

std::variant<Options, int> ParseOptions(int argc, const char* const* argv,
                                        const std::string& version) {
  Options options;
  options.config_file = ConfigFile().string();
  std::string idle_exit;
  std::string memory;
  std::string log_level;
  std::string precision;
  int threads = 0;
  int max_batch = 0;

  CLI::App app("microkimid: the daemon of microkimi. Holds models and serves mk over a socket.");
  app.set_version_flag("--version", version);
  app.footer(kFooter);
  app.add_option("--socket", options.socket,
                 "Path of the socket (default: MICROKIMI_SOCKET, "
                 "then $XDG_RUNTIME_DIR/microkimi)")
      ->type_name("PATH");
  app.add_option("--config", options.config_file, "Config file")->type_name("PATH");
  app.add_flag("--foreground", options.foreground, "Do not go into the background; log to stderr");
  app.add_option("--ready-fd", options.ready_fd,
                 "Write \"ready\" or an error line to this descriptor, and stay in the foreground")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option("--idle-exit", idle_exit,
                 "Leave after this long without a client: 30m, 2h; -1: never (default)")
      ->type_name("DURATION")
      ->check(Checked(ParseIdleExit, "DURATION"));
  auto* level = app.add_option("--log-level", log_level, "trace, debug, info, warn, error, off")
                    ->check(Checked(CheckLogLevel, "LEVEL"));
  auto* thread_option =
      app.add_option("--threads", threads, "Worker threads (default: one per core)")
          ->check(CLI::Range(1, 1024));
  auto* memory_option =
      app.add_option("--memory", memory, "Memory budget: 8GiB, auto (default: 3/4 of the machine)")
          ->type_name("SIZE")
          ->check(Checked(ParseBytes, "SIZE"));
  auto* batch_option =
      app.add_option("--max-batch", max_batch, "Requests that decode in one step (default 8)")
          ->check(CLI::Range(1, 64));
  auto* precision_option =
      app.add_option("--precision", precision,
                     "Arithmetic of runs that do not say: exact, bf16, q8 (default q8)")
          ->type_name("PRECISION")
          ->check(Checked(CheckPrecision, "PRECISION"));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.socket = Absolute(options.socket);
  options.config_file = Absolute(options.config_file);
  if (!idle_exit.empty()) options.idle_exit = *ParseIdleExit(idle_exit);
  if (level->count() > 0) options.log_level = log_level;
  if (thread_option->count() > 0) options.threads = threads;
  if (memory_option->count() > 0) options.memory = *ParseBytes(memory);
  if (batch_option->count() > 0) options.max_batch = max_batch;
  if (precision_option->count() > 0) options.precision = *CheckPrecision(precision);
  return options;
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
