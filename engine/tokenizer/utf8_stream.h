// Utf8Stream: token bytes in, whole characters out.
//
// A token may end in the middle of a character. The stream holds back at most three bytes, an
// incomplete but so far well-formed sequence, until the next token completes or breaks it; what is
// emitted is always valid UTF-8, and all of it together equals ReplaceIllFormed of all the bytes
// (when no Break comes between them).

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mk {

class Utf8Stream {
 public:
  // The text that these bytes complete; may be empty.
  std::string Push(std::string_view bytes);
  // A token without text, or the end: a character begun cannot be completed any more and becomes
  // U+FFFD. Empty when nothing is held back.
  std::string Break();
  // Bytes held back now, 0..3.
  size_t pending() const { return pending_.size(); }

 private:
  std::string pending_;
};

}  // namespace mk
