// UTF-8 and the wide characters of the C library, which are code points.

#pragma once

#include <string>
#include <string_view>

namespace mk::client {

// Of ill-formed text, what replaces its bytes is U+FFFD.
std::wstring Widen(std::string_view utf8);
// Code points that UTF-8 does not have become U+FFFD.
std::string Narrow(std::wstring_view wide);
// Length of the sequence that a byte begins, 1..4; 1 for a byte that begins none.
size_t Utf8SequenceLength(unsigned char lead);

}  // namespace mk::client
