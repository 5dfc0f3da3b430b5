// The DeepSeek-V4 pre-tokenizer: text to pieces, each of which is then merged on its own.
//
// Three cuts, each of the pieces that the one before left; a match is a piece, and so is every
// maximal stretch without a match. With L letters, M marks, N numbers, P punctuation, S symbols,
// W white space:
//   1  N{1,3}
//   2  [U+4E00-U+9FA5 U+3040-U+30FF]+
//   3  the first of these that matches at a position:
//      A  [ASCII P or S] [A-Za-z]+
//      B  [^\r\n L P S]? [L M]+
//      C  ' '? [P S]+ [\r\n]*
//      D  W* [\r\n]+
//      E  W+ not before a non-space
//      F  W+
// What is outside a piece is not seen from inside it: the end of a piece is the end of text.

#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace mk {

// The three cuts as tokenizer.json files write them, with CR and LF as characters.
extern const std::string_view kDsv4SplitPatterns[3];

// Ends of the pieces of `text`, as indices of code points, ascending; the last is text.size().
// Linear in the length of the text. Thread-safe.
std::vector<size_t> SplitDsv4Text(std::span<const char32_t> text);

}  // namespace mk
