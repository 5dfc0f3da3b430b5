// Base64 of RFC 4648, standard alphabet, strict.

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mk {

// The bytes, or nothing when `text` is not canonical padded base64: a foreign character, a length
// that is no multiple of 4, padding elsewhere than at the end, or unused bits that are not zero.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace mk
