#include "cli/config_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/nearest.h"

namespace mk::cli {
namespace {

// Positions of toml++, which are lines and code points, as bytes.
class Positions {
 public:
  explicit Positions(std::string_view text) : text_(text) {
    starts_.push_back(0);
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') starts_.push_back(i + 1);
    }
  }

  size_t Byte(const toml::source_position& position) const {
    if (position.line == 0) return 0;
    if (position.line > starts_.size()) return text_.size();
    size_t at = starts_[position.line - 1];
    // A byte order mark is no part of the first line.
    if (position.line == 1 && text_.starts_with("\xef\xbb\xbf")) at += 3;
    for (size_t column = 1; column < position.column && at < text_.size(); ++column) {
      ++at;
      while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) ++at;
    }
    return at;
  }
  TextRange Range(const toml::source_region& region) const {
    return {Byte(region.begin), Byte(region.end)};
  }

 private:
  std::string_view text_;
  std::vector<size_t> starts_;
};

// A value of the file; nothing: it is none of this key.
std::optional<ConfigValue> ValueOf(const ConfigKey& key, const toml::node& node) {
  const auto* text = node.as_string();
  const auto* number = node.as_integer();
  const bool bare = key.kind == ConfigKind::kCount || key.kind == ConfigKind::kSize;
  std::string typed;
  if (number != nullptr && bare) {
    typed = std::to_string(number->get());
  } else if (const auto* on = node.as_boolean(); on != nullptr && key.kind == ConfigKind::kBool) {
    return on->get();
  } else if (text != nullptr && key.kind != ConfigKind::kCount && key.kind != ConfigKind::kBool) {
    typed = text->get();
  } else {
    return std::nullopt;
  }
  auto value = ParseConfigValue(key, typed);
  if (!value) return std::nullopt;
  return std::move(*value);
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), positions_(text) {
    read_.root_end = text.size();
  }

  ConfigText Read() {
    try {
      const toml::table table = toml::parse(text_);
      for (const auto& [name, node] : table) Take(name, node);
    } catch (const toml::parse_error& error) {
      read_.syntax_error = true;
      read_.problems.push_back({error.source().begin.line, true, std::string(error.description()),
                                "mend the line or remove it"});
    }
    const auto line = [](const auto& a, const auto& b) { return a.line < b.line; };
    const auto place = [](const auto& a, const auto& b) { return a.name_begin < b.name_begin; };
    std::sort(read_.entries.begin(), read_.entries.end(), place);
    std::stable_sort(read_.problems.begin(), read_.problems.end(), line);
    return std::move(read_);
  }

 private:
  void Take(const toml::key& name, const toml::node& node) {
    const ConfigKey* key = FindConfigKey(name.str());
    if (const size_t begin = positions_.Byte(node.source().begin);
        node.is_table() && begin < text_.size() && text_[begin] == '[') {
      read_.root_end = std::min(read_.root_end, begin);
    }
    if (const auto* tables = node.as_array(); tables != nullptr && tables->is_array_of_tables()) {
      read_.root_end = std::min(read_.root_end, positions_.Byte(node.source().begin));
    }
    if (key == nullptr) return Unknown(name, node);
    if (key->kind != ConfigKind::kTable) return Add(*key, name, node);
    const auto* table = node.as_table();
    if (table == nullptr) return Add(*key, name, node);
    read_.table = positions_.Range(node.source());
    const char first = read_.table.begin < text_.size() ? text_[read_.table.begin] : '\0';
    read_.table_form = first == '[' ? TableForm::kSection
                                    : (first == '{' ? TableForm::kInline : TableForm::kDotted);
    for (const auto& [alias, value] : *table) Add(*key, alias, value);
  }

  void Add(const ConfigKey& key, const toml::key& name, const toml::node& node) {
    ConfigEntry entry = Entry(name, node);
    entry.key = &key;
    if (key.kind != ConfigKind::kTable) {
      entry.value = ValueOf(key, node);
    } else if (const auto* text = node.as_string(); text != nullptr && read_.table_form) {
      entry.value = text->get();
    }
    if (!entry.value) {
      const bool alias = key.kind == ConfigKind::kTable && read_.table_form;
      read_.problems.push_back(
          {entry.line, true,
           "bad value of \"" + (alias ? std::string(key.name) + "." : "") + entry.name + "\"",
           "expected: " + (alias ? "a string" : WantedOf(key))});
    }
    read_.entries.push_back(std::move(entry));
  }

  void Unknown(const toml::key& name, const toml::node& node) {
    ConfigEntry entry = Entry(name, node);
    std::vector<std::string> names;
    for (const ConfigKey& key : ConfigKeys()) names.emplace_back(key.name);
    std::string hint = DidYouMean(entry.name, names);
    if (hint.empty()) hint = "`mk config` lists the keys";
    read_.problems.push_back(
        {entry.line, false, "unknown key \"" + entry.name + "\" is ignored", std::move(hint)});
    read_.entries.push_back(std::move(entry));
  }

  ConfigEntry Entry(const toml::key& name, const toml::node& node) const {
    ConfigEntry entry;
    entry.name = std::string(name.str());
    entry.line = name.source().begin.line;
    entry.name_begin = positions_.Byte(name.source().begin);
    entry.text = positions_.Range(node.source());
    return entry;
  }

  std::string_view text_;
  Positions positions_;
  ConfigText read_;
};

}  // namespace

ConfigText ReadConfigText(std::string_view text) {
  return Reader(text).Read();
}

std::optional<ConfigValue> ValueIn(const ConfigText& text, const ConfigKey& key) {
  ConfigTable table;
  std::optional<ConfigValue> found;
  for (const ConfigEntry& entry : text.entries) {
    if (entry.key != &key || !entry.value) continue;
    found = entry.value;
    if (entry.in_table()) table[entry.name] = std::get<std::string>(*entry.value);
  }
  if (found && key.kind == ConfigKind::kTable) return table;
  return found;
}

tl::expected<std::optional<std::string>, FileFault> ReadConfigFile(const std::string& path) {
  constexpr size_t kLongest = size_t{1} << 20;
  const auto fault = [&path](int error, const std::string& why, std::string hint = {}) {
    return tl::unexpected<FileFault>({error, "cannot read " + path + ": " + why, std::move(hint)});
  };
  // Opening a FIFO would wait for somebody who writes.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    return fault(errno, std::strerror(errno));
  }
  struct stat info = {};
  std::string text;
  int error = ::fstat(fd, &info) == 0 ? 0 : errno;
  const bool regular = S_ISREG(info.st_mode);
  while (error == 0 && regular && text.size() <= kLongest) {
    char piece[4096];
    const ssize_t got = ::read(fd, piece, sizeof(piece));
    if (got == 0) break;
    if (got > 0) text.append(piece, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) error = errno;
  }
  ::close(fd);
  if (error != 0) return fault(error, std::strerror(error));
  if (!regular) return fault(EINVAL, "it is not a regular file", "name a file of TOML");
  if (text.size() > kLongest) return fault(EFBIG, "it is over 1 MiB", "name a file of TOML");
  return text;
}

}  // namespace mk::cli
