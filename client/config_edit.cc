#include "client/config_edit.h"

#include <algorithm>
#include <map>
#include <vector>

#include "cli/nearest.h"
#include "client/report.h"

namespace mk::client {
namespace {

using cli::ConfigEntry;
using cli::ConfigText;
using cli::TableForm;
using cli::TextRange;
using protocol::Fail;
using protocol::Result;

// A piece that is replaced.
struct Edit {
  TextRange range;
  std::string by;
};

std::string Applied(const std::string& text, const Edit& edit) {
  return text.substr(0, edit.range.begin) + edit.by + text.substr(edit.range.end);
}

const ConfigEntry* Find(const ConfigText& read, const ConfigTarget& target) {
  for (const ConfigEntry& entry : read.entries) {
    if (entry.key != target.key) continue;
    if (!entry.in_table() || entry.name == target.alias) return &entry;
  }
  return nullptr;
}

size_t LineStart(const std::string& text, size_t at) {
  if (at == 0) return 0;
  const size_t newline = text.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

// Behind the newline of the line that holds this byte.
size_t LineEnd(const std::string& text, size_t at) {
  const size_t newline = text.find('\n', at);
  return newline == std::string::npos ? text.size() : newline + 1;
}

// A file that came from elsewhere keeps its line ends.
std::string NewLineOf(const std::string& text) {
  const size_t newline = text.find('\n');
  return newline != std::string::npos && newline > 0 && text[newline - 1] == '\r' ? "\r\n" : "\n";
}

// A line of its own at this place, which is the start of a line or the end of the text.
Edit LineAt(const std::string& text, size_t at, const std::string& line) {
  const std::string newline = NewLineOf(text);
  const bool open = at > 0 && text[at - 1] != '\n';
  return {{at, at}, (open ? newline : "") + line + newline};
}

std::vector<const ConfigEntry*> TableEntries(const ConfigText& read) {
  std::vector<const ConfigEntry*> entries;
  for (const ConfigEntry& entry : read.entries) {
    if (entry.in_table()) entries.push_back(&entry);
  }
  return entries;
}

// "{ a = "b", c = "d" }": inline tables hold no comments that could get lost.
std::string InlineTable(const std::string& text, const ConfigText& read, const std::string& alias,
                        const std::string* written) {
  std::string inside;
  const auto add = [&inside](const std::string& name, const std::string& value) {
    inside += (inside.empty() ? " " : ", ") + cli::TomlKey(name) + " = " + value;
  };
  for (const ConfigEntry* entry : TableEntries(read)) {
    if (entry->name == alias) continue;
    add(entry->name, text.substr(entry->text.begin, entry->text.end - entry->text.begin));
  }
  if (written != nullptr) add(alias, *written);
  return "{" + inside + (inside.empty() ? "}" : " }");
}

// A key of the root that the text does not have: behind the last one that it has, else before its
// first section and the comment on top of that.
Edit NewRootKey(const std::string& text, const ConfigText& read, const std::string& line) {
  size_t at = std::string::npos;
  for (const ConfigEntry& entry : read.entries) {
    if (entry.name_begin < read.root_end && entry.text.end <= read.root_end) {
      at = LineEnd(text, std::max(entry.text.end, size_t{1}) - 1);
    }
  }
  if (at != std::string::npos) return LineAt(text, at, line);
  at = read.root_end < text.size() ? LineStart(text, read.root_end) : text.size();
  while (at > 0 && read.root_end < text.size()) {
    const size_t above = LineStart(text, at - 1);
    if (text[above] != '#') break;
    at = above;
  }
  Edit edit = LineAt(text, at, line);
  if (at < text.size()) edit.by += NewLineOf(text);
  return edit;
}

Edit NewAlias(const std::string& text, const ConfigText& read, const ConfigTarget& target,
              const std::string& written) {
  const std::string line = cli::TomlKey(target.alias) + " = " + written;
  const std::string table = target.key->name;
  if (!read.table_form) {
    const std::string newline = NewLineOf(text);
    const std::string gap = text.empty() ? "" : newline;
    return LineAt(text, text.size(), gap + "[" + table + "]" + newline + line);
  }
  const auto entries = TableEntries(read);
  size_t at = read.table.end;
  for (const ConfigEntry* entry : entries) at = std::max(at, entry->text.end);
  at = LineEnd(text, std::max(at, size_t{1}) - 1);
  const bool dotted = *read.table_form == TableForm::kDotted;
  return LineAt(text, at, (dotted ? table + "." : "") + line);
}

// The setting as it is written, and every other one: what an edit must leave as it is.
using Written = std::map<std::string, std::string>;
Written AllBut(const std::string& text, const ConfigText& read, const ConfigTarget& target) {
  Written written;
  for (const ConfigEntry& entry : read.entries) {
    const bool in_target = entry.key == target.key && target.key != nullptr;
    if (in_target && (!entry.in_table() || target.alias.empty() || entry.name == target.alias)) {
      continue;
    }
    const std::string name =
        (entry.in_table() ? std::string(entry.key->name) + "." : "") + entry.name;
    written[name] = text.substr(entry.text.begin, entry.text.end - entry.text.begin);
  }
  return written;
}

Result<ConfigText> Readable(const std::string& text) {
  ConfigText read = cli::ReadConfigText(text);
  if (!read.syntax_error) return read;
  const cli::ConfigProblem& problem = read.problems.front();
  return Fail(UsageError(
      "the config file is not TOML: line " + std::to_string(problem.line) + ": " + problem.message,
      "mend the line first; `mk config path` says where the file is"));
}

// An edit goes wrong when a file is written in a way that we did not think of; then nothing is
// changed.
Result<std::string> Checked(const std::string& text, const ConfigText& read, const Edit& edit,
                            const ConfigTarget& target, bool present) {
  std::string changed = Applied(text, edit);
  const ConfigText again = cli::ReadConfigText(changed);
  const bool found = Find(again, target) != nullptr;
  const bool whole_table = target.key->kind == cli::ConfigKind::kTable && target.alias.empty();
  const bool sound = !again.syntax_error && (whole_table || found == present) &&
                     AllBut(text, read, target) == AllBut(changed, again, target);
  if (sound) return changed;
  return Fail(
      UsageError("cannot change " + target.name() + " without touching the rest of the file",
                 "change it with an editor; `mk config path` says where the file is"));
}

// All lines of a section, or the line of an inline table.
Edit WithoutTable(const std::string& text, const ConfigText& read) {
  size_t end = read.table.end;
  for (const ConfigEntry* entry : TableEntries(read)) end = std::max(end, entry->text.end);
  return {{LineStart(text, read.table.begin), LineEnd(text, std::max(end, size_t{1}) - 1)}, ""};
}

}  // namespace

std::string ConfigTarget::name() const {
  return alias.empty() ? key->name : std::string(key->name) + "." + alias;
}

Result<ConfigTarget> FindTarget(std::string_view name) {
  const size_t dot = name.find('.');
  ConfigTarget target{cli::FindConfigKey(name.substr(0, dot)), {}};
  if (target.key != nullptr && dot == std::string_view::npos) return target;
  if (target.key != nullptr && target.key->kind == cli::ConfigKind::kTable &&
      dot + 1 < name.size()) {
    target.alias = name.substr(dot + 1);
    return target;
  }
  std::vector<std::string> names;
  for (const cli::ConfigKey& key : cli::ConfigKeys()) names.emplace_back(key.name);
  std::string hint = cli::DidYouMean(name, names);
  return Fail(UsageError("no such setting: \"" + std::string(name) + "\"",
                         hint.empty() ? "`mk config` lists them" : std::move(hint)));
}

Result<std::string> SetInConfig(const std::string& text, const ConfigTarget& target,
                                const std::string& written) {
  auto read = Readable(text);
  if (!read) return Fail(std::move(read.error()));
  Edit edit;
  if (const ConfigEntry* entry = Find(*read, target)) {
    edit = {entry->text, written};
  } else if (target.alias.empty()) {
    edit = NewRootKey(text, *read, std::string(target.key->name) + " = " + written);
  } else if (read->table_form == TableForm::kInline) {
    edit = {read->table, InlineTable(text, *read, target.alias, &written)};
  } else {
    edit = NewAlias(text, *read, target, written);
  }
  return Checked(text, *read, edit, target, true);
}

Result<std::optional<std::string>> UnsetInConfig(const std::string& text,
                                                 const ConfigTarget& target) {
  auto read = Readable(text);
  if (!read) return Fail(std::move(read.error()));
  const ConfigEntry* entry = Find(*read, target);
  const bool whole_table = target.alias.empty() && target.key->kind == cli::ConfigKind::kTable;
  Edit edit;
  if (whole_table && read->table_form) {
    edit = WithoutTable(text, *read);
  } else if (entry == nullptr) {
    return std::nullopt;
  } else if (entry->in_table() && read->table_form == TableForm::kInline) {
    edit = {read->table, InlineTable(text, *read, target.alias, nullptr)};
  } else {
    const size_t last = std::max(entry->text.end, size_t{1}) - 1;
    edit = {{LineStart(text, entry->name_begin), LineEnd(text, last)}, ""};
  }
  auto changed = Checked(text, *read, edit, target, false);
  if (!changed) return Fail(std::move(changed.error()));
  return std::optional(std::move(*changed));
}

}  // namespace mk::client
