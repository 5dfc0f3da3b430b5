// The byte alphabet of tokenizer.json files: a printable character for each of the 256 bytes.
//
// Bytes 0x21..0x7E, 0xA1..0xAC and 0xAE..0xFF are the characters of the same value; the other 68,
// in increasing order, are U+0100..U+0143. So a space is U+0120 and a newline U+010A.

#pragma once

#include <string>
#include <string_view>

namespace mk {

// UTF-8 of the character that stands for `byte`.
std::string ByteCharacter(unsigned char byte);

// The bytes that `text` (well-formed UTF-8) spells. Text with a character outside the alphabet
// spells its own UTF-8: so marks such as "<｜User｜>" are written.
std::string SpelledBytes(std::string_view text);

}  // namespace mk
