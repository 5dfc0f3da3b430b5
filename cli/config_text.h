// A config file, read: what it sets, where, and what is wrong with it.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "cli/config_keys.h"

namespace mk::cli {

// Bytes of the text, from `begin` up to and without `end`.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct ConfigEntry {
  const ConfigKey* key = nullptr;    // none: a key that is not known
  std::string name;                  // as it is named: "threads"; "story" of [aliases]
  std::optional<ConfigValue> value;  // none: a wrong one, or of an unknown key
  size_t line = 0;                   // from 1
  size_t name_begin = 0;
  TextRange text;  // of the value

  bool in_table() const { return key != nullptr && key->kind == ConfigKind::kTable; }
};

enum class TableForm {
  kSection,  // [aliases]
  kInline,   // aliases = { ... }
  kDotted,   // aliases.story = ...
};

struct ConfigProblem {
  size_t line = 0;
  bool fatal = false;  // the daemon does not use the file
  std::string message;
  std::string hint;
};

struct ConfigText {
  std::vector<ConfigEntry> entries;  // in the order of the text; entries of tables one by one
  std::vector<ConfigProblem> problems;
  bool syntax_error = false;            // then there are no entries
  std::optional<TableForm> table_form;  // of the table, if there is one
  TextRange table;                      // of its header or its braces
  // Where keys outside of sections end: the first header, or the end of the text.
  size_t root_end = 0;
};

ConfigText ReadConfigText(std::string_view text);

// What the file sets this key to, all of its entries together; nothing: it is silent.
std::optional<ConfigValue> ValueIn(const ConfigText& text, const ConfigKey& key);

struct FileFault {
  int error = 0;  // errno
  std::string message;
  std::string hint;
};

// The text of a config file; nothing when there is none. Errors: not a regular file, over
// 1 MiB, or what the system says.
tl::expected<std::optional<std::string>, FileFault> ReadConfigFile(const std::string& path);

}  // namespace mk::cli
