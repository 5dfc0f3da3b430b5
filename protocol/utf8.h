// Checking UTF-8.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mk::protocol {

// Offset of the first byte that does not belong to well-formed UTF-8 (no overlong forms, no
// surrogates, nothing above U+10FFFF, nothing cut off at the end); npos when all of it is.
size_t FindInvalidUtf8(std::string_view text);

// The text with U+FFFD for every byte that FindInvalidUtf8 stops at.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace mk::protocol
