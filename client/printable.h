// Text that others chose, made safe to show on a terminal, and its width there.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mk::client {

// The text without anything that moves the cursor, changes colours or reorders what is shown:
// control characters become \n, \t, \x1b, \u{202e}; bytes that are not UTF-8 become U+FFFD.
std::string Printable(std::string_view text);

// Columns that printable text takes on a terminal: 0 for combining characters, 2 for wide ones.
size_t DisplayWidth(std::string_view printable);

enum class Cut { kEnd, kStart };
// Printable text in exactly `width` columns: padded with spaces, or cut on one side, where "…"
// then stands. The end of a path says more than its start.
std::string Fitted(std::string_view printable, size_t width, Cut cut = Cut::kEnd);

}  // namespace mk::client
