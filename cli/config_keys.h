// The keys of config.toml: one table that the daemon obeys, the client edits, and the manual shows.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>

namespace mk::cli {

enum class ConfigKind {
  kText,
  kCount,     // a whole number
  kBool,      // true, false
  kSize,      // bytes: 1000000, "8GiB", "auto"
  kDuration,  // "90s", "10m", "-1" (never ends)
  kChoice,    // one of `choices`
  kTable,     // names with texts
};

using ConfigTable = std::map<std::string, std::string>;
// Of kCount, kSize (bytes) and kDuration (ms; -1: for ever) an integer.
using ConfigValue = std::variant<std::string, int64_t, bool, ConfigTable>;

struct ConfigKey {
  const char* name;
  ConfigKind kind;
  const char* example;    // a value as it is written in the file
  const char* fallback;   // what counts where the file is silent, as ParseConfigValue() takes it
  const char* text;       // what it is for
  bool live = true;       // a daemon that rereads the file obeys; else the next one does
  int64_t low = 0;        // of kCount, kDuration (ms) and kSize
  int64_t high = 0;       // of kCount
  int64_t automatic = 0;  // of kSize: what "auto" is; negative where 0 means none at all
  std::span<const char* const> choices = {};
  // The option of microkimid that has the last word, and what its help calls the value.
  const char* option = nullptr;
  const char* value_name = nullptr;
};

// In the order in which they are shown.
std::span<const ConfigKey> ConfigKeys();
// Nothing for a name that is no key.
const ConfigKey* FindConfigKey(std::string_view name);

struct ValueFault {
  std::string message;  // what is wrong with it
  std::string wanted;   // "a whole number from 1 to 64"
};

// A value as people type it, without quotes. Not for kTable. Errors: it is none of this key.
tl::expected<ConfigValue, ValueFault> ParseConfigValue(const ConfigKey& key, std::string_view text);
// What ParseConfigValue() makes this value of; tables as "a = b, c = d".
std::string ShowConfigValue(const ConfigKey& key, const ConfigValue& value);
// The same as it is written in the file: with quotes where TOML wants them. Not for kTable.
std::string WriteConfigValue(const ConfigKey& key, const ConfigValue& value);
// What a value has to be.
std::string WantedOf(const ConfigKey& key);

// A string of TOML, in quotes.
std::string TomlString(std::string_view text);
// A key of TOML: bare where that is possible.
std::string TomlKey(std::string_view name);

}  // namespace mk::cli
