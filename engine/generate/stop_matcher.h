// StopMatcher: finds stop strings in text that arrives in pieces.
//
// Text that could be the beginning of a stop string is held back, so that no part of one is ever
// given out. Of several stop strings the one that is complete first wins (of those the longest), so
// the result does not depend on how the text was cut into pieces.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mk {

class StopMatcher {
 public:
  // Empty strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops);

  // The text that may be given out now. After a match: the text before the stop string, and
  // nothing from then on.
  std::string Push(std::string_view text);
  // What is held back, when no more text will come.
  std::string Flush();

  // Index of the stop string that was found, in the list given to the constructor.
  std::optional<size_t> matched() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop string
  std::optional<size_t> matched_;
};

}  // namespace mk
