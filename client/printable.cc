#include "client/printable.h"

#include <wchar.h>

#include <array>
#include <clocale>
#include <cstdio>

#include "client/wide_text.h"

namespace mk::client {
namespace {

bool IsControl(wchar_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

// Line and paragraph separators, and what turns the direction of text.
bool IsFormat(wchar_t code) {
  return (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0x061C || code == 0xFEFF;
}

std::string Escape(wchar_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  std::array<char, 16> text;
  std::snprintf(text.data(), text.size(), code < 0x100 ? "\\x%02x" : "\\u{%x}",
                static_cast<unsigned>(code));
  return text.data();
}

// The C library knows the widths of characters, in a locale of UTF-8.
class WidthTable {
 public:
  WidthTable() : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {}
  ~WidthTable() {
    if (locale_ != nullptr) freelocale(locale_);
  }
  WidthTable(const WidthTable&) = delete;
  WidthTable& operator=(const WidthTable&) = delete;

  size_t Of(wchar_t code) const {
    if (code < 0x80 || locale_ == nullptr) return 1;
    const locale_t before = uselocale(locale_);
    const int width = ::wcwidth(code);
    uselocale(before);
    return width < 0 ? 1 : static_cast<size_t>(width);
  }

 private:
  locale_t locale_;
};

size_t WidthOf(wchar_t code) {
  static const WidthTable table;
  return table.Of(code);
}

size_t WidthOf(std::wstring_view text) {
  size_t width = 0;
  for (const wchar_t code : text) width += WidthOf(code);
  return width;
}

// Number of characters, from the first of a range on, that fit into so many columns together.
template <typename Iterator>
size_t CountFitting(Iterator begin, Iterator end, size_t columns) {
  size_t count = 0;
  size_t used = 0;
  for (Iterator it = begin; it != end; ++it) {
    used += WidthOf(*it);
    if (used > columns) break;
    ++count;
  }
  return count;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable;
  std::wstring plain;  // not yet in `printable`
  for (const wchar_t code : Widen(text)) {
    if (!IsControl(code) && !IsFormat(code)) {
      plain += code;
      continue;
    }
    printable += Narrow(plain) + Escape(code);
    plain.clear();
  }
  return printable + Narrow(plain);
}

size_t DisplayWidth(std::string_view printable) {
  return WidthOf(Widen(printable));
}

std::string Fitted(std::string_view printable, size_t width, Cut cut) {
  constexpr wchar_t kEllipsis = L'\u2026';
  if (width == 0) return {};
  std::wstring text = Widen(printable);
  if (WidthOf(text) > width && cut == Cut::kEnd) {
    text.resize(CountFitting(text.begin(), text.end(), width - 1));
    text += kEllipsis;
  } else if (WidthOf(text) > width) {
    text.erase(0, text.size() - CountFitting(text.rbegin(), text.rend(), width - 1));
    text.insert(text.begin(), kEllipsis);
  }
  return Narrow(text).append(width - WidthOf(text), ' ');
}

}  // namespace mk::client
