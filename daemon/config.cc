#include "daemon/config.h"

#include <toml++/toml.h>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
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

// Reads one file's keys; remembers the first error.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path.string()) {}

  Result<LoadedConfig> Read(const toml::table& table) {
    for (const auto& [key, node] : table) ReadKey(std::string(key.str()), node);
    if (!error_.message.empty()) return Fail(error_);
    return std::move(loaded_);
  }

 private:
  void ReadKey(const std::string& key, const toml::node& node) {
    Config& config = loaded_.config;
    if (key == "default_model") {
      config.default_model = String(key, node);
    } else if (key == "aliases") {
      ReadAliases(node);
    } else if (key == "threads") {
      config.threads = Integer(key, node, 0, 1024);
    } else if (key == "memory") {
      config.memory = Size(key, node);
    } else if (key == "max_batch") {
      config.max_batch = Integer(key, node, 1, 64);
    } else if (key == "max_queue") {
      config.max_queue = Integer(key, node, 0, 4096);
    } else if (key == "keep_alive") {
      config.keep_alive = Parsed(key, node, ParseDuration);
    } else if (key == "precision") {
      config.precision = Parsed(key, node, CheckPrecision);
    } else if (key == "spine_cache") {
      config.spine_cache = Bool(key, node);
    } else if (key == "spine_cache_limit") {
      config.spine_cache_limit = Size(key, node);
    } else if (key == "spine_cache_smallest") {
      config.spine_cache_smallest = Size(key, node);
    } else if (key == "log_level") {
      config.log_level = String(key, node);
      if (auto level = CheckLogLevel(config.log_level); !level) Bad(key, node, level.error().hint);
    } else {
      loaded_.warnings.push_back(Where(node) + "unknown key \"" + key + "\" is ignored");
    }
  }

  void ReadAliases(const toml::node& node) {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Bad("aliases", node, "a table: [aliases]");
    for (const auto& [name, value] : *table) {
      const std::string alias(name.str());
      loaded_.config.aliases[alias] = String("aliases." + alias, value);
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

  template <typename Parse>
  auto Parsed(const std::string& key, const toml::node& node, Parse parse) ->
      typename decltype(parse(std::string_view()))::value_type {
    const auto* text = node.as_string();
    auto value = parse(text != nullptr ? std::string_view(text->get()) : std::string_view());
    if (value) return *value;
    Bad(key, node, value.error().hint);
    return {};
  }

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

}  // namespace

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
