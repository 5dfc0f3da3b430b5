#include "engine/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

constexpr size_t kCharacters = 0x144;
constexpr int16_t kNoByte = -1;

struct Alphabet {
  std::array<uint16_t, 256> character{};    // by byte
  std::array<int16_t, kCharacters> byte{};  // by character

  constexpr Alphabet() {
    for (int16_t& b : byte) b = kNoByte;
    uint16_t next = 0x100;
    for (uint16_t b = 0; b < 256; ++b) {
      const bool plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = plain ? b : next++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string ByteCharacter(unsigned char byte) {
  const uint16_t c = kAlphabet.character[byte];  // below U+0800: at most two bytes of UTF-8
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

std::string SpelledBytes(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<uint8_t>(text[i]);
    uint32_t c = first;
    size_t length = 1;
    if (first >= 0x80) {
      length = Utf8SequenceLength(text.substr(i));
      if (length != 2) return std::string(text);
      c = ((first & 0x1Fu) << 6) | (static_cast<uint8_t>(text[i + 1]) & 0x3Fu);
    }
    if (c >= kCharacters || kAlphabet.byte[c] == kNoByte) return std::string(text);
    bytes.push_back(static_cast<char>(kAlphabet.byte[c]));
    i += length;
  }
  return bytes;
}

}  // namespace mk
