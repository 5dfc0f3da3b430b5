// Bytes written as hex digits, blanks between them.

#pragma once

#include <string>
#include <string_view>

namespace mk::routing {

inline std::string FromHex(std::string_view hex) {
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() < 2) continue;
    bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
    digits.clear();
  }
  return bytes;
}

}  // namespace mk::routing
