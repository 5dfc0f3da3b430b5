// The Kimi pre-tokenizer: text to chunks, each of which is then merged on its own.
//
// With L letters, M marks, N numbers, W white space, H script Han, U = (Lu|Lt|Lm|Lo|M) not H,
// D = (Ll|Lm|Lo|M) not H, the chunk at a position is the first of these that matches:
//   1  H+
//   2  [^\r\n L N]? U* D+ contraction?         contraction: 's 't 're 've 'm 'll 'd, any case
//   3  [^\r\n L N]? U+ D* contraction?
//   4  N{1,3}
//   5  ' '? [^W L N]+ [\r\n]*
//   6  W* [\r\n]+
//   7  W+ not before a non-space
//   8  W+
// Every code point falls into some chunk, so the scan always advances.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mk {

// Long texts are cut before the rules apply, as the published tokenizer does.
struct SplitLimits {
  size_t piece = 400'000;    // code points per piece
  size_t same_run = 25'000;  // longest run of only white space, or only other characters
};

// Ends of the chunks of `text`, as indices of code points, ascending; the last is text.size().
// Linear in the length of the text. Thread-safe.
std::vector<size_t> SplitText(std::span<const char32_t> text, const SplitLimits& limits = {});

}  // namespace mk
