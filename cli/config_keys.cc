#include "cli/config_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

namespace mk::cli {
namespace {

constexpr std::array kPrecisionNames = {"exact", "bf16", "q8"};
constexpr std::array kStreamModes = {"auto", "on", "off"};
constexpr std::array kStreamPolicies = {"aged", "lru", "lfu", "arc"};
constexpr std::array kStreamIos = {"auto", "buffered", "threads"};
constexpr std::array kLogLevels = {"trace", "debug", "info", "warn", "error", "off"};

constexpr ConfigKey kKeys[] = {
    {"default_model", ConfigKind::kText, "\"story\"", "",
     "model of runs that name none: an alias, a file name in the models folder, or a path; "
     "empty: the bundled one"},
    {.name = "threads",
     .kind = ConfigKind::kCount,
     .example = "4",
     .fallback = "0",
     .text = "worker threads; 0: one per core",
     .live = false,
     .low = 0,
     .high = 1024,
     .option = "--threads",
     .value_name = "N"},
    {.name = "memory",
     .kind = ConfigKind::kSize,
     .example = "\"8GiB\"",
     .fallback = "auto",
     .text = "memory budget; auto: 3/4 of the machine, or of what its cgroup allows",
     .low = 64 << 10,  // a bare number was a mistake
     .option = "--memory",
     .value_name = "SIZE"},
    {.name = "max_batch",
     .kind = ConfigKind::kCount,
     .example = "8",
     .fallback = "8",
     .text = "sequences that decode in one step",
     .low = 1,
     .high = 64,
     .option = "--max-batch",
     .value_name = "N"},
    {.name = "max_queue",
     .kind = ConfigKind::kCount,
     .example = "64",
     .fallback = "64",
     .text = "requests that may wait before new ones are told \"busy\"",
     .low = 0,
     .high = 4096},
    {.name = "keep_alive",
     .kind = ConfigKind::kDuration,
     .example = "\"10m\"",
     .fallback = "10m",
     .text = "unload a model that nobody used for so long; 0: at once, -1: never"},
    {.name = "idle_exit",
     .kind = ConfigKind::kDuration,
     .example = "\"30m\"",
     .fallback = "-1",
     .text = "leave after so long without a client; -1: never",
     .low = 1000,  // nobody would have the time to connect
     .option = "--idle-exit",
     .value_name = "DURATION"},
    {.name = "precision",
     .kind = ConfigKind::kChoice,
     .example = "\"q8\"",
     .fallback = "q8",
     .text = "arithmetic of runs that do not say: exact, bf16 or q8",
     .choices = kPrecisionNames,
     .option = "--precision",
     .value_name = "PRECISION"},
    {.name = "spine_cache",
     .kind = ConfigKind::kBool,
     .example = "true",
     .fallback = "true",
     .text = "keep prepared weights on disk: models load faster"},
    {.name = "spine_cache_limit",
     .kind = ConfigKind::kSize,
     .example = "\"20GiB\"",
     .fallback = "auto",
     .text = "bytes of them; auto: 20 GB or a tenth of the disk at most"},
    {.name = "spine_cache_smallest",
     .kind = ConfigKind::kSize,
     .example = "\"64MiB\"",
     .fallback = "64MiB",
     .text = "weights of fewer bytes are prepared anew by every load"},
    {.name = "stream",
     .kind = ConfigKind::kChoice,
     .example = "\"auto\"",
     .fallback = "auto",
     .text = "leave routed experts in the file of a model: auto, if it does not fit into the "
             "budget; on; off",
     .choices = kStreamModes},
    {.name = "stream_memory",
     .kind = ConfigKind::kSize,
     .example = "\"8GiB\"",
     .fallback = "auto",
     .text = "bytes for experts of a streamed model; auto: three quarters of what is free"},
    {.name = "stream_policy",
     .kind = ConfigKind::kChoice,
     .example = "\"aged\"",
     .fallback = "aged",
     .text = "which of them stay: aged (use counts that fade), lru, lfu or arc",
     .choices = kStreamPolicies},
    {.name = "stream_io",
     .kind = ConfigKind::kChoice,
     .example = "\"auto\"",
     .fallback = "auto",
     .text = "how they are read: auto, past the page cache by io_uring; buffered, through it; "
             "threads, by pread",
     .choices = kStreamIos},
    {.name = "stream_prefetch",
     .kind = ConfigKind::kBool,
     .example = "true",
     .fallback = "true",
     .text = "read experts ahead that are likely to be needed, while that pays"},
    {.name = "count_experts",
     .kind = ConfigKind::kBool,
     .example = "true",
     .fallback = "false",
     .text = "count how often experts are picked, of models loaded from then on"},
    {.name = "prefix_cache",
     .kind = ConfigKind::kBool,
     .example = "true",
     .fallback = "true",
     .text = "keep states of prompts: what was read before is not read again"},
    {.name = "prefix_cache_limit",
     .kind = ConfigKind::kSize,
     .example = "\"1GiB\"",
     .fallback = "auto",
     .text = "bytes of them; auto: an eighth of the budget"},
    {.name = "prefix_disk_limit",
     .kind = ConfigKind::kSize,
     .example = "\"4GiB\"",
     .fallback = "auto",
     .text = "bytes of them on disk; auto: 10 GB or a twentieth of the disk at most, 0: none",
     .automatic = -1},
    {.name = "session_states",
     .kind = ConfigKind::kCount,
     .example = "8",
     .fallback = "8",
     .text = "last turns of a session whose states are kept on disk; earlier ones are read again",
     .low = 1,
     .high = 10'000},
    {.name = "session_states_limit",
     .kind = ConfigKind::kSize,
     .example = "\"1GiB\"",
     .fallback = "auto",
     .text = "bytes of them per session, but for the last one; auto: 1GiB"},
    {.name = "session_memory_limit",
     .kind = ConfigKind::kSize,
     .example = "\"1GiB\"",
     .fallback = "auto",
     .text = "bytes of states of sessions in memory; auto: an eighth of the budget"},
    {.name = "session_idle",
     .kind = ConfigKind::kDuration,
     .example = "\"5m\"",
     .fallback = "5m",
     .text = "drop the state of a session from memory that nobody used for so long; -1: never"},
    {.name = "jobs_at_once",
     .kind = ConfigKind::kCount,
     .example = "1",
     .fallback = "1",
     .text = "jobs that run at once; the others wait",
     .low = 1,
     .high = 16},
    {.name = "jobs_keep",
     .kind = ConfigKind::kCount,
     .example = "100",
     .fallback = "100",
     .text = "jobs that have ended and are remembered",
     .low = 0,
     .high = 10'000},
    {.name = "jobs_keep_for",
     .kind = ConfigKind::kDuration,
     .example = "\"30d\"",
     .fallback = "30d",
     .text = "forget them after so long; -1: never"},
    {.name = "jobs_read_limit",
     .kind = ConfigKind::kSize,
     .example = "\"200MiB\"",
     .fallback = "auto",
     .text = "bytes that `mk verify` reads per second, to spare the disk; auto: all it can"},
    {.name = "log_level",
     .kind = ConfigKind::kChoice,
     .example = "\"info\"",
     .fallback = "info",
     .text = "what the log holds: trace, debug, info, warn, error, off",
     .choices = kLogLevels,
     .option = "--log-level",
     .value_name = "LEVEL"},
    {.name = "aliases",
     .kind = ConfigKind::kTable,
     .example = "{ story = \"/data/models/story-k3.bin\" }",
     .fallback = "",
     .text = "names for models: a table, or a section [aliases]"},
};

struct Unit {
  std::string_view suffix;
  int64_t factor;
};

// The first that has a factor is the one that it is shown with; larger ones come first.
constexpr Unit kDurations[] = {
    {"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}};
constexpr Unit kSizes[] = {{"TiB", 1LL << 40},
                           {"T", 1LL << 40},
                           {"GiB", 1LL << 30},
                           {"G", 1LL << 30},
                           {"MiB", 1LL << 20},
                           {"M", 1LL << 20},
                           {"KiB", 1LL << 10},
                           {"K", 1LL << 10},
                           {"", 1},
                           {"B", 1}};

// Digits and a unit from the list; an empty suffix stands for the bare number.
std::optional<int64_t> ParseWithUnit(std::string_view text, std::span<const Unit> units) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest == text.data() || value < 0) return std::nullopt;
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.suffix != suffix) continue;
    if (value > std::numeric_limits<int64_t>::max() / unit.factor) return std::nullopt;
    return value * unit.factor;
  }
  return std::nullopt;
}

std::string WithUnit(int64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value >= unit.factor && value % unit.factor == 0) {
      return std::to_string(value / unit.factor) + std::string(unit.suffix);
    }
  }
  return std::to_string(value);
}

std::optional<int64_t> ParseCount(const ConfigKey& key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < key.low || value > key.high) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseDuration(const ConfigKey& key, std::string_view text) {
  if (text == "-1") return -1;
  const auto value = text == "0" ? 0 : ParseWithUnit(text, kDurations);
  if (!value || *value < key.low) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseSize(const ConfigKey& key, std::string_view text) {
  if (text == "auto") return key.automatic;
  const auto value = ParseWithUnit(text, kSizes);
  if (!value || *value < key.low) return std::nullopt;
  return value;
}

std::optional<ConfigValue> Parse(const ConfigKey& key, std::string_view text) {
  switch (key.kind) {
    case ConfigKind::kText:
      return std::string(text);
    case ConfigKind::kCount:
      return ParseCount(key, text);
    case ConfigKind::kBool:
      if (text == "true") return true;
      if (text == "false") return false;
      break;
    case ConfigKind::kSize:
      return ParseSize(key, text);
    case ConfigKind::kDuration:
      return ParseDuration(key, text);
    case ConfigKind::kChoice:
      for (const char* choice : key.choices) {
        if (text == choice) return std::string(choice);
      }
      break;
    case ConfigKind::kTable:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() {
  return kKeys;
}

const ConfigKey* FindConfigKey(std::string_view name) {
  const auto* found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                   [&](const ConfigKey& key) { return name == key.name; });
  return found != std::end(kKeys) ? found : nullptr;
}

std::string WantedOf(const ConfigKey& key) {
  switch (key.kind) {
    case ConfigKind::kText:
      return "a string";
    case ConfigKind::kCount:
      return "a whole number from " + std::to_string(key.low) + " to " + std::to_string(key.high);
    case ConfigKind::kBool:
      return "true or false";
    case ConfigKind::kSize:
      return "a size such as 512MiB, 8GiB or auto" +
             std::string(key.low > 0 ? ", of " + WithUnit(key.low, kSizes) + " or more" : "");
    case ConfigKind::kDuration:
      return "a duration such as 90s, 10m or 2h" +
             std::string(key.low > 0 ? ", of " + WithUnit(key.low, kDurations) + " or more" : "") +
             "; -1: never";
    case ConfigKind::kChoice: {
      std::string list;
      for (const char* choice : key.choices)
        list += (list.empty() ? "" : ", ") + std::string(choice);
      return "one of " + list;
    }
    case ConfigKind::kTable:
      return "a table of names and paths: [" + std::string(key.name) + "]";
  }
  return {};
}

tl::expected<ConfigValue, ValueFault> ParseConfigValue(const ConfigKey& key,
                                                       std::string_view text) {
  if (auto value = Parse(key, text)) return std::move(*value);
  std::string message(1, '"');
  message.append(text).append("\" is no value of ").append(key.name);
  return tl::unexpected<ValueFault>({std::move(message), WantedOf(key)});
}

std::string ShowConfigValue(const ConfigKey& key, const ConfigValue& value) {
  // 0 is "auto" where that is what counts without the key.
  const auto fallback = Parse(key, key.fallback);
  if (fallback && *fallback == value) return key.fallback;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* on = std::get_if<bool>(&value)) return *on ? "true" : "false";
  if (const auto* table = std::get_if<ConfigTable>(&value)) {
    std::string list;
    for (const auto& [name, text] : *table)
      list += (list.empty() ? "" : ", ") + name + " = " + text;
    return list;
  }
  const int64_t number = std::get<int64_t>(value);
  if (key.kind == ConfigKind::kSize) return number < 0 ? "auto" : WithUnit(number, kSizes);
  if (key.kind == ConfigKind::kDuration) return WithUnit(number, kDurations);
  return std::to_string(number);
}

std::string WriteConfigValue(const ConfigKey& key, const ConfigValue& value) {
  const std::string shown = ShowConfigValue(key, value);
  const bool digits = !shown.empty() && shown.find_first_not_of("0123456789") == std::string::npos;
  const bool bare = key.kind == ConfigKind::kCount || key.kind == ConfigKind::kBool ||
                    (key.kind == ConfigKind::kSize && digits);
  return bare ? shown : TomlString(shown);
}

std::string TomlString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (byte < 0x20 || byte == 0x7f) {
      std::array<char, 8> escaped;
      std::snprintf(escaped.data(), escaped.size(), "\\u%04X", byte);
      quoted += escaped.data();
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string TomlKey(std::string_view name) {
  constexpr const char* kBare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  const bool bare = !name.empty() && name.find_first_not_of(kBare) == std::string_view::npos;
  return bare ? std::string(name) : TomlString(name);
}

}  // namespace mk::cli
