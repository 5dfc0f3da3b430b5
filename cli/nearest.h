// "Did you mean": the name that a mistyped one is closest to.

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace mk::cli {

// Letters that were added, left out, replaced or swapped with their neighbour.
size_t EditDistance(std::string_view a, std::string_view b);

// The closest of the names, if it is close enough to be what was meant: one change, or one for
// every three letters. A name that `word` begins is one, too. Empty: none. Of equals, the first.
std::string Nearest(std::string_view word, std::span<const std::string> names);

// "did you mean NAME?", or empty.
std::string DidYouMean(std::string_view word, std::span<const std::string> names);

}  // namespace mk::cli
