// The settings that outlive a command line: $XDG_CONFIG_HOME/microkimi/config.toml.
//
// cli/config_keys.h lists the keys, for people too. A key that is not known is a warning that names
// it; a value of the wrong kind is an error, and the file is then not used at all.

#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/config_keys.h"
#include "daemon/stream_wish.h"
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
  StreamMode stream = StreamMode::kAuto;
  uint64_t stream_memory = 0;  // bytes; 0: from what is free
  CachePolicyKind stream_policy = CachePolicyKind::kAged;
  StreamIo stream_io = StreamIo::kAuto;
  bool stream_prefetch = true;
  bool count_experts = false;
  bool prefix_cache = true;
  uint64_t prefix_cache_limit = 0;    // bytes; 0: from the budget
  int64_t prefix_disk_limit = -1;     // bytes; 0: none are kept on disk; negative: from the disk
  int session_states = 8;             // of a session, on disk
  uint64_t session_states_limit = 0;  // bytes; 0: a gibibyte
  uint64_t session_memory_limit = 0;  // bytes; 0: from the budget
  std::chrono::milliseconds session_idle{std::chrono::minutes(5)};  // negative: for ever
  int jobs_at_once = 1;
  int jobs_keep = 100;                                                   // that have ended
  std::chrono::milliseconds jobs_keep_for{std::chrono::hours(30 * 24)};  // negative: for ever
  uint64_t jobs_read_limit = 0;             // bytes per second; 0: none
  std::chrono::milliseconds idle_exit{-1};  // leave after so long without a client; negative: never
  std::string log_level = "info";
};

// The keys of the file, one by one: cli::ConfigKeys(). `value` is one of the key.
void SetConfig(Config& config, const cli::ConfigKey& key, const cli::ConfigValue& value);
cli::ConfigValue GetConfig(const Config& config, const cli::ConfigKey& key);
// The keys whose values differ, in the order of ConfigKeys().
std::vector<const cli::ConfigKey*> ChangedKeys(const Config& before, const Config& after);

struct LoadedConfig {
  Config config;
  std::vector<std::string> warnings;
};

// Reads the file; a missing file gives the defaults. Errors: kInvalidArgument with file, line and
// key, kIo, kPermissionDenied.
Result<LoadedConfig> LoadConfig(const std::filesystem::path& path);

}  // namespace mk::daemon
