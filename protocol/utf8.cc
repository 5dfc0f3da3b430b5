#include "protocol/utf8.h"

#include <cstdint>
#include <cstring>

namespace mk::protocol {
namespace {

// Length of the well-formed character at the start of `rest`, 0 if there is none. Second bytes have
// narrower ranges after E0, ED, F0 and F4 (The Unicode Standard, table 3-7).
size_t CharacterLength(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(rest[i]); };
  const uint8_t lead = byte(0);
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (rest.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight bytes of ASCII at a time.
    uint64_t word = 0;
    if (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        at += sizeof(word);
        continue;
      }
    }
    const size_t length = CharacterLength(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  while (true) {
    const size_t bad = FindInvalidUtf8(text);
    clean += text.substr(0, bad);
    if (bad == std::string_view::npos) return clean;
    clean += "\xEF\xBF\xBD";
    text.remove_prefix(bad + 1);
  }
}

}  // namespace mk::protocol
