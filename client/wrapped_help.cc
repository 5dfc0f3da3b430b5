#include "client/wrapped_help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "client/printable.h"

namespace mk::client {
namespace {

// Text in fewer columns than this is not read any more: it goes below the name instead.
constexpr size_t kFewestColumns = 20;
constexpr size_t kBelowName = 4;

// Where the text of a line begins: behind the gap in "  --name  text".
size_t TextColumn(std::string_view line) {
  const size_t first = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", first);
  return gap == std::string_view::npos ? first : line.find_first_not_of(' ', gap);
}

size_t LongestWord(std::string_view text) {
  size_t longest = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    longest = std::max(longest, DisplayWidth(word));
  }
  return longest;
}

void AddWrapped(std::string& text, std::string_view line, size_t columns) {
  const size_t start = TextColumn(line);
  const std::string_view name = line.substr(0, start);
  const size_t room = std::max(kFewestColumns, LongestWord(line.substr(start)));
  const bool beside = start + room <= columns;
  const size_t indent = beside ? start : kBelowName;
  size_t used = start;
  if (beside) {
    text += name;
  } else {
    const size_t named = name.find_last_not_of(' ') + 1;
    if (named > 0) text.append(name.substr(0, named)).append("\n");
    text.append(indent, ' ');
    used = indent;
  }
  bool first = true;
  for (std::string_view rest = line.substr(start); !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const size_t width = DisplayWidth(word);
    if (!first && used + 1 + width > columns) {
      text.append("\n").append(indent, ' ');
      used = indent;
      first = true;
    }
    if (!first) text += ' ';
    text += word;
    used += width + (first ? 0 : 1);
    first = false;
  }
  text += '\n';
}

size_t OutputColumns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1) return 0;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

std::string WrapHelp(std::string_view help, size_t columns) {
  std::string text;
  bool examples = false;
  while (!help.empty()) {
    const std::string_view line = help.substr(0, help.find('\n'));
    help.remove_prefix(std::min(line.size() + 1, help.size()));
    if (line.starts_with("Example")) examples = true;
    if (line.empty()) examples = false;
    if (columns == 0 || examples || DisplayWidth(line) <= columns) {
      text.append(line).append("\n");
    } else {
      AddWrapped(text, line, columns);
    }
  }
  return text;
}

std::string HelpForOutput(std::string_view help) {
  return WrapHelp(help, OutputColumns());
}

}  // namespace mk::client
