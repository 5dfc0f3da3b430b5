#include "client/config_view.h"

#include <algorithm>
#include <cerrno>

#include "client/printable.h"

namespace mk::client {
namespace {

using cli::ConfigKey;
using cli::ConfigKind;
using cli::ConfigTable;
using cli::ConfigValue;
using protocol::ErrorCode;

constexpr size_t kNameWidth = 22;
constexpr size_t kValueWidth = 24;

std::string Padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + " ";
}

// The entry that sets a key; of a table, its first.
const cli::ConfigEntry* EntryOf(const cli::ConfigText& read, const ConfigKey& key) {
  for (const cli::ConfigEntry& entry : read.entries) {
    if (entry.key == &key && entry.value) return &entry;
  }
  return nullptr;
}

// What a daemon that runs obeys, as far as it tells.
std::optional<ConfigValue> RunningValue(const protocol::StatusDone& status, const ConfigKey& key) {
  const std::string name = key.name;
  if (name == "threads") return static_cast<int64_t>(status.threads);
  if (name == "max_batch") return static_cast<int64_t>(status.max_batch);
  if (name == "precision") return status.precision;
  return std::nullopt;
}

// The daemon's value where it is another one than the file's; 0 threads stand for any number.
std::optional<ConfigValue> Different(const std::optional<RunningDaemon>& daemon,
                                     const ConfigKey& key, const ConfigValue& value) {
  if (!daemon) return std::nullopt;
  auto running = RunningValue(daemon->status, key);
  const bool any = std::string(key.name) == "threads" && value == ConfigValue(int64_t{0});
  if (!running || any || *running == value) return std::nullopt;
  return running;
}

std::string Row(const std::string& name, const std::string& value, const std::string& source) {
  return "  " + Padded(Printable(name), kNameWidth) + Padded(Printable(value), kValueWidth) +
         source + "\n";
}

std::string TableRows(const ConfigFileText& file, const ConfigKey& key) {
  std::string rows;
  for (const cli::ConfigEntry& entry : file.read.entries) {
    if (entry.key != &key || !entry.value) continue;
    rows += Row(std::string(key.name) + "." + entry.name, std::get<std::string>(*entry.value),
                "file, line " + std::to_string(entry.line));
  }
  return rows.empty() ? Row(key.name, "-", "default") : rows;
}

std::string RowOf(const ConfigFileText& file, const std::optional<RunningDaemon>& daemon,
                  const ConfigKey& key) {
  if (key.kind == ConfigKind::kTable) return TableRows(file, key);
  const ConfigValue value = EffectiveValue(file.read, key);
  const cli::ConfigEntry* entry = EntryOf(file.read, key);
  std::string source = entry != nullptr ? "file, line " + std::to_string(entry->line) : "default";
  if (const auto running = Different(daemon, key, value)) {
    source += "; the daemon that runs: " + cli::ShowConfigValue(key, *running);
  }
  const std::string shown = cli::ShowConfigValue(key, value);
  return Row(key.name, shown.empty() ? "-" : shown, source);
}

}  // namespace

bool ConfigFileText::fatal() const {
  return std::any_of(read.problems.begin(), read.problems.end(),
                     [](const cli::ConfigProblem& problem) { return problem.fatal; });
}

protocol::Result<ConfigFileText> ReadConfig(const std::string& path) {
  auto text = cli::ReadConfigFile(path);
  if (!text) {
    const bool denied = text.error().error == EACCES || text.error().error == EPERM;
    return protocol::Fail(denied ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
                          text.error().message, text.error().hint);
  }
  ConfigFileText file{path, text->has_value(), text->value_or(""), {}};
  file.read = cli::ReadConfigText(file.text);
  return file;
}

std::string ProblemLine(const ConfigFileText& file, const cli::ConfigProblem& problem) {
  return Printable(file.path) + ":" + std::to_string(problem.line) + ": " +
         Printable(problem.message);
}

ConfigValue EffectiveValue(const cli::ConfigText& read, const ConfigKey& key) {
  if (auto value = cli::ValueIn(read, key)) return std::move(*value);
  if (key.kind == ConfigKind::kTable) return ConfigTable();
  auto fallback = cli::ParseConfigValue(key, key.fallback);
  return fallback ? std::move(*fallback) : ConfigValue(std::string());
}

Json ValueJson(const ConfigKey& key, const ConfigValue& value) {
  if (const auto* table = std::get_if<ConfigTable>(&value)) {
    Json object = Json::object();
    for (const auto& [name, text] : *table) object[name] = text;
    return object;
  }
  if (const auto* on = std::get_if<bool>(&value)) return *on;
  if (key.kind == ConfigKind::kCount) return std::get<int64_t>(value);
  return cli::ShowConfigValue(key, value);
}

std::string SettingsText(const ConfigFileText& file, const std::optional<RunningDaemon>& daemon) {
  std::string text = "file    " + Printable(file.path) + (file.exists ? "" : " (there is none)");
  text += "\ndaemon  " + (daemon ? daemon->name() : std::string("none runs")) + "\n";
  for (const ConfigKey& key : cli::ConfigKeys()) text += RowOf(file, daemon, key);
  return text;
}

Json ProblemsJson(const ConfigFileText& file) {
  Json problems = Json::array();
  for (const cli::ConfigProblem& problem : file.read.problems) {
    problems.push_back({{"line", problem.line},
                        {"fatal", problem.fatal},
                        {"message", problem.message},
                        {"hint", problem.hint}});
  }
  return problems;
}

Json SettingsJson(const ConfigFileText& file, const std::optional<RunningDaemon>& daemon) {
  Json settings = Json::array();
  for (const ConfigKey& key : cli::ConfigKeys()) {
    const ConfigValue value = EffectiveValue(file.read, key);
    const cli::ConfigEntry* entry = EntryOf(file.read, key);
    Json one = {{"key", key.name},
                {"value", ValueJson(key, value)},
                {"source", entry != nullptr ? "file" : "default"}};
    if (entry != nullptr) one["line"] = entry->line;
    if (const auto running = Different(daemon, key, value)) {
      one["running"] = ValueJson(key, *running);
    }
    one["live"] = key.live;
    one["text"] = key.text;
    settings.push_back(std::move(one));
  }
  Json json = {{"schema", 1}, {"file", file.path}, {"exists", file.exists}};
  json["pid"] = daemon ? Json(daemon->status.pid) : Json(nullptr);
  json["settings"] = std::move(settings);
  json["problems"] = ProblemsJson(file);
  return json;
}

}  // namespace mk::client
