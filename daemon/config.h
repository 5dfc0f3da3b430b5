// The settings that outlive a command line: $XDG_CONFIG_HOME/microkimi/config.toml.
//
//   default_model = "story"        # an alias, a file name in the models folder, or a path
//   threads = 4                    # worker threads; 0: one per core
//   memory = "8GiB"                # budget; "auto": from the machine and its cgroup
//   max_batch = 8                  # sequences that decode in one step
//   max_queue = 64                 # requests that may wait before new ones are told "busy"
//   keep_alive = "10m"             # unload an idle model after this; "0": at once, "-1": never
//   precision = "q8"               # exact, bf16 or q8: of runs that do not say
//   spine_cache = true             # keep prepared weights on disk: models load faster
//   spine_cache_limit = "20GiB"    # bytes of them; "auto": 20 GB or a tenth of the disk at most
//   spine_cache_smallest = "64MiB" # weights of fewer bytes are prepared anew by every load
//   log_level = "info"             # trace, debug, info, warn, error, off
//   [aliases]
//   story = "/data/models/story-k3.bin"
//
// A key that is not known is a warning that names it; a value of the wrong kind is an error, and
// the file is then not used at all.

#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace mk::daemon {

struct Config {
  std::string default_model;  // empty: the bundled model
  std::map<std::string, std::string> aliases;
  int threads = 0;      // 0: one per core
  uint64_t memory = 0;  // bytes; 0: from the machine
  int max_batch = 8;
  int max_queue = 64;
  std::chrono::milliseconds keep_alive{std::chrono::minutes(10)};  // negative: for ever
  Precision precision = Precision::kQ8;  // of requests that leave it to the daemon
  bool spine_cache = true;
  uint64_t spine_cache_limit = 0;  // bytes; 0: from the disk
  uint64_t spine_cache_smallest = SpineCacheOptions().smallest;
  std::string log_level = "info";
};

struct LoadedConfig {
  Config config;
  std::vector<std::string> warnings;
};

// Reads the file; a missing file gives the defaults. Errors: kInvalidArgument with file, line and
// key, kIo, kPermissionDenied.
Result<LoadedConfig> LoadConfig(const std::filesystem::path& path);

// "90s", "10m", "2h", "250ms", "0", "-1" (for ever).
Result<std::chrono::milliseconds> ParseDuration(std::string_view text);
// "512MiB", "8G", "1000000", "auto" (0).
Result<uint64_t> ParseBytes(std::string_view text);
// "exact", "bf16", "q8".
Result<Precision> CheckPrecision(std::string_view name);
// Checks a log level's name.
Status CheckLogLevel(std::string_view name);

}  // namespace mk::daemon
