// Changing one setting of a config file, and nothing else in it: comments, order and blanks stay.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/config_text.h"
#include "protocol/error.h"

namespace mk::client {

// What a user names: a key, or one name in a table ("aliases.story").
struct ConfigTarget {
  const cli::ConfigKey* key = nullptr;
  std::string alias;  // of a table; empty: all of it

  std::string name() const;
};

// Errors: kBadRequest with the name that was meant.
protocol::Result<ConfigTarget> FindTarget(std::string_view name);

// The text with the setting at this value, as WriteConfigValue() or TomlString() writes it. Errors:
// kBadRequest when the text is no TOML, or is written in a way that cannot be changed by us.
protocol::Result<std::string> SetInConfig(const std::string& text, const ConfigTarget& target,
                                          const std::string& written);
// The text without it; nothing when it does not set it.
protocol::Result<std::optional<std::string>> UnsetInConfig(const std::string& text,
                                                           const ConfigTarget& target);

}  // namespace mk::client
