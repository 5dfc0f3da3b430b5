#include "daemon/config.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <type_traits>

#include "cli/config_text.h"

namespace mk::daemon {
namespace {

using cli::ConfigKey;
using cli::ConfigValue;

// What the table's values are to the daemon.
void Take(const ConfigValue& value, std::string& member) {
  member = std::get<std::string>(value);
}
void Take(const ConfigValue& value, cli::ConfigTable& member) {
  member = std::get<cli::ConfigTable>(value);
}
void Take(const ConfigValue& value, bool& member) {
  member = std::get<bool>(value);
}
void Take(const ConfigValue& value, int& member) {
  member = static_cast<int>(std::get<int64_t>(value));
}
void Take(const ConfigValue& value, int64_t& member) {
  member = std::get<int64_t>(value);
}
void Take(const ConfigValue& value, uint64_t& member) {
  member = static_cast<uint64_t>(std::get<int64_t>(value));
}
void Take(const ConfigValue& value, std::chrono::milliseconds& member) {
  member = std::chrono::milliseconds(std::get<int64_t>(value));
}
void Take(const ConfigValue& value, Precision& member) {
  if (const auto known = ParsePrecision(std::get<std::string>(value))) member = *known;
}

void Take(const ConfigValue& value, StreamMode& member) {
  if (const auto known = ParseStreamMode(std::get<std::string>(value))) member = *known;
}
void Take(const ConfigValue& value, CachePolicyKind& member) {
  if (const auto known = ParseCachePolicy(std::get<std::string>(value))) member = *known;
}
void Take(const ConfigValue& value, StreamIo& member) {
  if (const auto known = ParseStreamIo(std::get<std::string>(value))) member = *known;
}

std::string_view NameOf(Precision precision) {
  return PrecisionName(precision);
}
std::string_view NameOf(StreamMode mode) {
  return StreamModeName(mode);
}
std::string_view NameOf(CachePolicyKind policy) {
  return CachePolicyName(policy);
}
std::string_view NameOf(StreamIo io) {
  return StreamIoName(io);
}

template <typename T>
ConfigValue Give(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(NameOf(member));
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    return std::max<int64_t>(member.count(), -1);
  } else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, uint64_t>) {
    return static_cast<int64_t>(member);
  } else {
    return member;
  }
}

struct Setting {
  std::string_view name;
  void (*set)(Config& config, const ConfigValue& value);
  ConfigValue (*get)(const Config& config);
};

template <auto kMember>
constexpr Setting Of(std::string_view name) {
  return {name, [](Config& config, const ConfigValue& value) { Take(value, config.*kMember); },
          [](const Config& config) { return Give(config.*kMember); }};
}

constexpr std::array kSettings = {
    Of<&Config::default_model>("default_model"),
    Of<&Config::threads>("threads"),
    Of<&Config::memory>("memory"),
    Of<&Config::max_batch>("max_batch"),
    Of<&Config::max_queue>("max_queue"),
    Of<&Config::keep_alive>("keep_alive"),
    Of<&Config::idle_exit>("idle_exit"),
    Of<&Config::precision>("precision"),
    Of<&Config::spine_cache>("spine_cache"),
    Of<&Config::spine_cache_limit>("spine_cache_limit"),
    Of<&Config::spine_cache_smallest>("spine_cache_smallest"),
    Of<&Config::stream>("stream"),
    Of<&Config::stream_memory>("stream_memory"),
    Of<&Config::stream_policy>("stream_policy"),
    Of<&Config::stream_io>("stream_io"),
    Of<&Config::stream_prefetch>("stream_prefetch"),
    Of<&Config::count_experts>("count_experts"),
    Of<&Config::prefix_cache>("prefix_cache"),
    Of<&Config::prefix_cache_limit>("prefix_cache_limit"),
    Of<&Config::prefix_disk_limit>("prefix_disk_limit"),
    Of<&Config::session_states>("session_states"),
    Of<&Config::session_states_limit>("session_states_limit"),
    Of<&Config::session_memory_limit>("session_memory_limit"),
    Of<&Config::session_idle>("session_idle"),
    Of<&Config::jobs_at_once>("jobs_at_once"),
    Of<&Config::jobs_keep>("jobs_keep"),
    Of<&Config::jobs_keep_for>("jobs_keep_for"),
    Of<&Config::jobs_read_limit>("jobs_read_limit"),
    Of<&Config::log_level>("log_level"),
    Of<&Config::aliases>("aliases"),
};

const Setting* Find(const ConfigKey& key) {
  const auto* found = std::find_if(kSettings.begin(), kSettings.end(),
                                   [&](const Setting& one) { return one.name == key.name; });
  return found != kSettings.end() ? found : nullptr;
}

}  // namespace

void SetConfig(Config& config, const ConfigKey& key, const ConfigValue& value) {
  if (const Setting* setting = Find(key)) setting->set(config, value);
}

ConfigValue GetConfig(const Config& config, const ConfigKey& key) {
  const Setting* setting = Find(key);
  return setting != nullptr ? setting->get(config) : ConfigValue();
}

std::vector<const ConfigKey*> ChangedKeys(const Config& before, const Config& after) {
  std::vector<const ConfigKey*> changed;
  for (const ConfigKey& key : cli::ConfigKeys()) {
    if (GetConfig(before, key) != GetConfig(after, key)) changed.push_back(&key);
  }
  return changed;
}

Result<LoadedConfig> LoadConfig(const std::filesystem::path& path) {
  auto text = cli::ReadConfigFile(path.string());
  if (!text) {
    const bool denied = text.error().error == EACCES;
    return Fail(denied ? ErrorCode::kPermissionDenied : ErrorCode::kIo, text.error().message,
                text.error().hint);
  }
  LoadedConfig loaded;
  if (!*text) return loaded;
  const cli::ConfigText read = cli::ReadConfigText(**text);
  for (const cli::ConfigProblem& problem : read.problems) {
    const std::string where = path.string() + ":" + std::to_string(problem.line) + ": ";
    if (problem.fatal) {
      return Fail(ErrorCode::kInvalidArgument, where + problem.message, problem.hint);
    }
    loaded.warnings.push_back(where + problem.message);
  }
  for (const ConfigKey& key : cli::ConfigKeys()) {
    if (const auto value = cli::ValueIn(read, key)) SetConfig(loaded.config, key, *value);
  }
  return loaded;
}

}  // namespace mk::daemon
