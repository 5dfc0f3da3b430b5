#include "client/wide_text.h"

#include "protocol/utf8.h"

namespace mk::client {
namespace {

static_assert(sizeof(wchar_t) >= 4, "a wide character holds any code point");

constexpr wchar_t kReplacement = L'\uFFFD';

void AppendUtf8(char32_t point, std::string& out) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((point >> shift) & 0x3F)));
  };
  if (point < 0x80) {
    out.push_back(static_cast<char>(point));
  } else if (point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (point >> 6)));
    tail(0);
  } else if (point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (point >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

size_t Utf8SequenceLength(unsigned char lead) {
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  if (lead >= 0xE0) return lead <= 0xEF ? 3 : 1;
  return lead >= 0xC2 ? 2 : 1;
}

std::wstring Widen(std::string_view text) {
  std::string replaced;
  if (protocol::FindInvalidUtf8(text) != std::string_view::npos) {
    replaced = protocol::ReplaceInvalidUtf8(text);
    text = replaced;
  }
  std::wstring wide;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = Utf8SequenceLength(lead);
    // Bits of the lead byte that belong to the code point: 7, 5, 4, 3.
    char32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
    for (size_t k = 1; k < length; ++k) {
      point = (point << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3F);
    }
    wide.push_back(static_cast<wchar_t>(point));
    i += length;
  }
  return wide;
}

std::string Narrow(std::wstring_view wide) {
  std::string text;
  for (const wchar_t c : wide) {
    auto point = static_cast<char32_t>(c);
    const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
    if (surrogate || point > 0x10FFFF) point = kReplacement;
    AppendUtf8(point, text);
  }
  return text;
}

}  // namespace mk::client
