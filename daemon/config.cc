#include "daemon/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <sstream>

namespace mk::daemon {
namespace {

struct Unit {
  std::string_view suffix;
  uint64_t factor;
};

// Digits and a unit from the list; an empty suffix stands for the bare number.
Result<uint64_t> ParseWithUnit(std::string_view text, std::span<const Unit> units, const char* what,
                               const char* example) {
  const auto bad = [&] {
    return Fail(ErrorCode::kInvalidArgument,
                std::string("not a ") + what + ": \"" + std::string(text) + "\"",
                std::string("write it like ") + example);
  };
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest == text.data()) return bad();
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  for (const Unit& unit : units) {
    if (unit.suffix != suffix) continue;
    if (value > std::numeric_limits<int64_t>::max() / unit.factor) return bad();
    return value * unit.factor;
  }
  return bad();
}

constexpr std::array kDurations = {Unit{"ms", 1}, Unit{"s", 1000}, Unit{"m", 60'000},
                                   Unit{"h", 3'600'000}, Unit{"d", 86'400'000}};
constexpr std::array kSizes = {
    Unit{"", 1},           Unit{"B", 1},           Unit{"K", 1u << 10}, Unit{"KiB", 1u << 10},
    Unit{"M", 1u << 20},   Unit{"MiB", 1u << 20},  Unit{"G", 1u << 30}, Unit{"GiB", 1u << 30},
    Unit{"T", 1ull << 40}, Unit{"TiB", 1ull << 40}};

// Reads values of one file; remembers the first error.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path.string()) {}

  Result<LoadedConfig> Read(const toml::table& table);

  void Aliases(const toml::node& node, Config& config) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Bad("aliases", node, "a table: [aliases]");
    for (const auto& [name, value] : *table) {
      const std::string alias(name.str());
      config.aliases[alias] = String("aliases." + alias, value);
    }
  }

  std::string String(const std::string& key, const toml::node& node) {
    if (const auto* text = node.as_string()) return text->get();
    Bad(key, node, "a string");
    return {};
  }

  int Integer(const std::string& key, const toml::node& node, int64_t low, int64_t high) {
    const auto* value = node.as_integer();
    if (value != nullptr && value->get() >= low && value->get() <= high) {
      return static_cast<int>(value->get());
    }
    Bad(key, node, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    return static_cast<int>(low);
  }

  bool Bool(const std::string& key, const toml::node& node) {
    if (const auto* value = node.as_boolean()) return value->get();
    Bad(key, node, "true or false");
    return false;
  }

  uint64_t Size(const std::string& key, const toml::node& node) {
    const auto* bytes = node.as_integer();
    if (bytes == nullptr) return Parsed(key, node, ParseBytes);
    if (bytes->get() >= 0) return static_cast<uint64_t>(bytes->get());
    Bad(key, node, "a size such as \"8GiB\"");
    return 0;
  }

  std::string LogLevel(const std::string& key, const toml::node& node) {
    std::string level = String(key, node);
    if (auto known = CheckLogLevel(level); !known) Bad(key, node, known.error().hint);
    return level;
  }

  template <typename Parse>
  auto Parsed(const std::string& key, const toml::node& node, Parse parse) ->
      typename decltype(parse(std::string_view()))::value_type {
    const auto* text = node.as_string();
    auto value = parse(text != nullptr ? std::string_view(text->get()) : std::string_view());
    if (value) return *value;
    Bad(key, node, value.error().hint);
    return {};
  }

 private:
  std::string Where(const toml::node& node) const {
    return path_ + ":" + std::to_string(node.source().begin.line) + ": ";
  }

  void Bad(const std::string& key, const toml::node& node, const std::string& wanted) {
    if (!error_.message.empty()) return;
    error_ = Error{ErrorCode::kInvalidArgument, Where(node) + "bad value of \"" + key + "\"",
                   "expected: " + wanted};
  }

  std::string path_;
  LoadedConfig loaded_;
  Error error_;
};

// A key: how it is shown, read and compared.
struct Setting {
  ConfigKey key;
  void (*read)(Reader& reader, const toml::node& node, Config& config);
  bool (*same)(const Config& a, const Config& b);
};

template <auto kMember>
bool Same(const Config& a, const Config& b) {
  return a.*kMember == b.*kMember;
}

using Node = const toml::node&;

constexpr Setting kSettings[] = {
    {{"default_model", "\"story\"", "an alias, a file name in the models folder, or a path"},
     [](Reader& r, Node n, Config& c) { c.default_model = r.String("default_model", n); },
     Same<&Config::default_model>},
    {{"threads", "4", "worker threads; 0: one per core", false},
     [](Reader& r, Node n, Config& c) { c.threads = r.Integer("threads", n, 0, 1024); },
     Same<&Config::threads>},
    {{"memory", "\"8GiB\"", "budget; \"auto\": from the machine and its cgroup"},
     [](Reader& r, Node n, Config& c) { c.memory = r.Size("memory", n); },
     Same<&Config::memory>},
    {{"max_batch", "8", "sequences that decode in one step"},
     [](Reader& r, Node n, Config& c) { c.max_batch = r.Integer("max_batch", n, 1, 64); },
     Same<&Config::max_batch>},
    {{"max_queue", "64", "requests that may wait before new ones are told \"busy\""},
     [](Reader& r, Node n, Config& c) { c.max_queue = r.Integer("max_queue", n, 0, 4096); },
     Same<&Config::max_queue>},
    {{"keep_alive", "\"10m\"",
      "unload a model that nobody used for so long; \"0\": at once, \"-1\": never"},
     [](Reader& r, Node n, Config& c) { c.keep_alive = r.Parsed("keep_alive", n, ParseDuration); },
     Same<&Config::keep_alive>},
    {{"idle_exit", "\"30m\"", "leave after so long without a client; \"-1\": never"},
     [](Reader& r, Node n, Config& c) { c.idle_exit = r.Parsed("idle_exit", n, ParseIdleExit); },
     Same<&Config::idle_exit>},
    {{"precision", "\"q8\"", "exact, bf16 or q8: of runs that do not say"},
     [](Reader& r, Node n, Config& c) { c.precision = r.Parsed("precision", n, CheckPrecision); },
     Same<&Config::precision>},
    {{"spine_cache", "true", "keep prepared weights on disk: models load faster"},
     [](Reader& r, Node n, Config& c) { c.spine_cache = r.Bool("spine_cache", n); },
     Same<&Config::spine_cache>},
    {{"spine_cache_limit", "\"20GiB\"",
      "bytes of them; \"auto\": 20 GB or a tenth of the disk at most"},
     [](Reader& r, Node n, Config& c) { c.spine_cache_limit = r.Size("spine_cache_limit", n); },
     Same<&Config::spine_cache_limit>},
    {{"spine_cache_smallest", "\"64MiB\"",
      "weights of fewer bytes are prepared anew by every load"},
     [](Reader& r, Node n, Config& c) {
       c.spine_cache_smallest = r.Size("spine_cache_smallest", n);
     },
     Same<&Config::spine_cache_smallest>},
    {{"prefix_cache", "true", "keep states of prompts: what was read before is not read again"},
     [](Reader& r, Node n, Config& c) { c.prefix_cache = r.Bool("prefix_cache", n); },
     Same<&Config::prefix_cache>},
    {{"prefix_cache_limit", "\"1GiB\"", "bytes of them; \"auto\": an eighth of the budget"},
     [](Reader& r, Node n, Config& c) { c.prefix_cache_limit = r.Size("prefix_cache_limit", n); },
     Same<&Config::prefix_cache_limit>},
    {{"jobs_at_once", "1", "jobs that run at once; the others wait"},
     [](Reader& r, Node n, Config& c) { c.jobs_at_once = r.Integer("jobs_at_once", n, 1, 16); },
     Same<&Config::jobs_at_once>},
    {{"jobs_keep", "100", "jobs that have ended and are remembered"},
     [](Reader& r, Node n, Config& c) { c.jobs_keep = r.Integer("jobs_keep", n, 0, 10'000); },
     Same<&Config::jobs_keep>},
    {{"jobs_keep_for", "\"30d\"", "forget them after so long; \"-1\": never"},
     [](Reader& r, Node n, Config& c) {
       c.jobs_keep_for = r.Parsed("jobs_keep_for", n, ParseDuration);
     },
     Same<&Config::jobs_keep_for>},
    {{"jobs_read_limit", "\"200MiB\"",
      "bytes that `mk verify` reads per second, to spare the disk; \"auto\": all it can"},
     [](Reader& r, Node n, Config& c) { c.jobs_read_limit = r.Size("jobs_read_limit", n); },
     Same<&Config::jobs_read_limit>},
    {{"log_level", "\"info\"", "trace, debug, info, warn, error, off"},
     [](Reader& r, Node n, Config& c) { c.log_level = r.LogLevel("log_level", n); },
     Same<&Config::log_level>},
    {{"aliases", "{ story = \"/data/models/story-k3.bin\" }",
      "names for models: a table, or a section [aliases]"},
     [](Reader& r, Node n, Config& c) { r.Aliases(n, c); },
     Same<&Config::aliases>},
};

// The same keys without what is inside.
constexpr auto kShown = [] {
  std::array<ConfigKey, std::size(kSettings)> shown{};
  std::transform(std::begin(kSettings), std::end(kSettings), shown.begin(),
                 [](const Setting& setting) { return setting.key; });
  return shown;
}();

Result<LoadedConfig> Reader::Read(const toml::table& table) {
  for (const auto& [name, node] : table) {
    const auto* setting =
        std::find_if(std::begin(kSettings), std::end(kSettings),
                     [&](const Setting& one) { return name.str() == one.key.name; });
    if (setting != std::end(kSettings)) {
      setting->read(*this, node, loaded_.config);
    } else {
      loaded_.warnings.push_back(Where(node) + "unknown key \"" + std::string(name.str()) +
                                 "\" is ignored");
    }
  }
  if (!error_.message.empty()) return Fail(error_);
  return std::move(loaded_);
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() {
  return kShown;
}

std::vector<ConfigKey> ChangedKeys(const Config& before, const Config& after) {
  std::vector<ConfigKey> changed;
  for (const Setting& setting : kSettings) {
    if (!setting.same(before, after)) changed.push_back(setting.key);
  }
  return changed;
}

Result<LoadedConfig> LoadConfig(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) return LoadedConfig{};
    return Fail(errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
                "cannot read " + path.string() + ": " + std::strerror(errno));
  }
  std::ostringstream text;
  text << file.rdbuf();
  try {
    const toml::table table = toml::parse(text.str(), path.string());
    return Reader(path).Read(table);
  } catch (const toml::parse_error& error) {
    return Fail(ErrorCode::kInvalidArgument,
                path.string() + ":" + std::to_string(error.source().begin.line) + ": " +
                    std::string(error.description()),
                "mend the line or remove it");
  }
}

Result<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  if (text == "0") return std::chrono::milliseconds(0);
  if (text == "-1") return std::chrono::milliseconds(-1);
  auto value = ParseWithUnit(text, kDurations, "duration", "90s, 10m or 2h");
  if (!value) return Fail(value.error());
  return std::chrono::milliseconds(*value);
}

Result<std::chrono::milliseconds> ParseIdleExit(std::string_view text) {
  auto time = ParseDuration(text);
  if (!time || time->count() < 0 || *time >= std::chrono::seconds(1)) return time;
  // Nobody would have the time to connect.
  return Fail(ErrorCode::kInvalidArgument, "too short: \"" + std::string(text) + "\"",
              "a second or more, or -1: never");
}

Result<uint64_t> ParseBytes(std::string_view text) {
  if (text == "auto") return uint64_t{0};
  return ParseWithUnit(text, kSizes, "size", "512MiB, 8GiB or auto");
}

Result<Precision> CheckPrecision(std::string_view name) {
  if (const auto precision = ParsePrecision(name)) return *precision;
  return Fail(ErrorCode::kInvalidArgument, "unknown precision \"" + std::string(name) + "\"",
              "one of exact, bf16, q8");
}

Status CheckLogLevel(std::string_view name) {
  constexpr std::array kLevels = {"trace", "debug", "info", "warn", "error", "off"};
  for (const char* level : kLevels) {
    if (name == level) return {};
  }
  return Fail(ErrorCode::kInvalidArgument, "unknown log level \"" + std::string(name) + "\"",
              "one of trace, debug, info, warn, error, off");
}

}  // namespace mk::daemon
