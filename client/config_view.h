// The settings that count, and where each comes from, as text and as JSON.

#pragma once

#include <optional>
#include <string>

#include "cli/config_text.h"
#include "client/daemon_reload.h"
#include "client/json_format.h"

namespace mk::client {

struct ConfigFileText {
  std::string path;
  bool exists = false;
  std::string text;
  cli::ConfigText read;

  // The daemon does not use the file at all.
  bool fatal() const;
};

// Errors: kIoError, kPermissionDenied; a missing file is an empty one.
protocol::Result<ConfigFileText> ReadConfig(const std::string& path);

// "path:line: message", for people.
std::string ProblemLine(const ConfigFileText& file, const cli::ConfigProblem& problem);

// What `mk config` shows. A daemon that runs tells what it was started with.
std::string SettingsText(const ConfigFileText& file, const std::optional<RunningDaemon>& daemon);
Json SettingsJson(const ConfigFileText& file, const std::optional<RunningDaemon>& daemon);
Json ProblemsJson(const ConfigFileText& file);
// One value: a string, a number, true or false, or an object of names.
Json ValueJson(const cli::ConfigKey& key, const cli::ConfigValue& value);
// The value of the file, else the default.
cli::ConfigValue EffectiveValue(const cli::ConfigText& read, const cli::ConfigKey& key);

}  // namespace mk::client
