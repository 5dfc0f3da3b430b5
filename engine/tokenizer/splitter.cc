#include "engine/tokenizer/splitter.h"

#include <algorithm>
#include <string_view>

#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

constexpr uint32_t kUpper =
    CategorySet(Category::kLu, Category::kLt, Category::kLm, Category::kLo) | kMarks;
constexpr uint32_t kLower = CategorySet(Category::kLl, Category::kLm, Category::kLo) | kMarks;

bool IsNewline(char32_t c) {
  return c == U'\n' || c == U'\r';
}

// The letters of contractions; simple case folding also makes U+017F (long s) an s.
char32_t FoldAscii(char32_t c) {
  if (c == U'\u017F') return U's';
  return c >= U'A' && c <= U'Z' ? c + 32 : c;
}

// White space as Python's str.isspace has it, which the cutting of long texts goes by.
bool IsPythonSpace(char32_t c) {
  return (c >= 0x1C && c <= 0x1F) || PropertiesOf(c).IsWhiteSpace();
}

// The rules on one piece. Positions are indices of code points.
class Scanner {
 public:
  explicit Scanner(std::span<const char32_t> text) : text_(text), properties_(text.size()) {
    std::transform(text.begin(), text.end(), properties_.begin(), PropertiesOf);
  }

  // End of the chunk that starts at `i` < size; always greater than i.
  size_t ChunkEnd(size_t i) const {
    if (properties_[i].IsHan()) return RunEnd(i, &Scanner::IsHan);
    if (const size_t end = WordEnd(i); end != 0) return end;
    if (properties_[i].Is(kNumbers)) return NumberEnd(i);
    if (const size_t end = PunctuationEnd(i); end != 0) return end;
    return SpaceEnd(i);
  }

 private:
  using Test = bool (Scanner::*)(size_t) const;

  bool IsHan(size_t i) const { return properties_[i].IsHan(); }
  bool IsUpper(size_t i) const { return properties_[i].Is(kUpper) && !properties_[i].IsHan(); }
  bool IsLower(size_t i) const { return properties_[i].Is(kLower) && !properties_[i].IsHan(); }
  bool IsSpace(size_t i) const { return properties_[i].IsWhiteSpace(); }
  bool IsOther(size_t i) const {  // neither white space nor letter nor number
    return !properties_[i].IsWhiteSpace() && !properties_[i].Is(kLetters | kNumbers);
  }

  // First position from `i` on where the test fails.
  size_t RunEnd(size_t i, Test test) const {
    while (i < text_.size() && (this->*test)(i)) ++i;
    return i;
  }

  // Rules 2 and 3; 0 when neither matches. Rule 2 is tried with and without the head before
  // rule 3 is, and within rule 2 the capitals give back characters until a D can follow.
  size_t WordEnd(size_t i) const {
    const bool head = !IsNewline(text_[i]) && !properties_[i].Is(kLetters | kNumbers);
    for (const size_t start : {i + (head ? 1 : 0), i}) {
      const size_t capitals = RunEnd(start, &Scanner::IsUpper);
      for (size_t j = capitals + 1; j-- > start;) {
        if (j < text_.size() && IsLower(j)) {
          return ContractionEnd(RunEnd(j, &Scanner::IsLower));
        }
      }
    }
    for (const size_t start : {i + (head ? 1 : 0), i}) {
      const size_t capitals = RunEnd(start, &Scanner::IsUpper);
      if (capitals > start) return ContractionEnd(capitals);
    }
    return 0;
  }

  // End of a contraction at `i`, or `i` itself.
  size_t ContractionEnd(size_t i) const {
    if (i >= text_.size() || text_[i] != U'\'') return i;
    constexpr std::u32string_view kSuffixes[] = {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"};
    for (const std::u32string_view suffix : kSuffixes) {
      if (suffix.size() > text_.size() - i - 1) continue;
      const auto same = [](char32_t want, char32_t c) { return want == FoldAscii(c); };
      if (std::equal(suffix.begin(), suffix.end(), text_.begin() + i + 1, same)) {
        return i + 1 + suffix.size();
      }
    }
    return i;
  }

  size_t NumberEnd(size_t i) const {
    const size_t limit = std::min(text_.size(), i + 3);
    while (i < limit && properties_[i].Is(kNumbers)) ++i;
    return i;
  }

  // Rule 5; 0 when it does not match.
  size_t PunctuationEnd(size_t i) const {
    const bool space = text_[i] == U' ' && i + 1 < text_.size() && IsOther(i + 1);
    const size_t start = space ? i + 1 : i;
    if (!IsOther(start)) return 0;
    size_t end = RunEnd(start, &Scanner::IsOther);
    while (end < text_.size() && IsNewline(text_[end])) ++end;
    return end;
  }

  // Rules 6 to 8, for white space at `i`.
  size_t SpaceEnd(size_t i) const {
    const size_t run = RunEnd(i, &Scanner::IsSpace);
    for (size_t end = run; end > i; --end) {
      if (IsNewline(text_[end - 1])) return end;
    }
    return run < text_.size() && run - 1 > i ? run - 1 : run;
  }

  std::span<const char32_t> text_;
  std::vector<CharProperties> properties_;
};

// Ends of the parts of a piece in which no run of one kind is longer than `limit`.
std::vector<size_t> CutLongRuns(std::span<const char32_t> piece, size_t limit) {
  std::vector<size_t> ends;
  size_t run = 0;
  bool run_is_space = false;
  for (size_t i = 0; i < piece.size(); ++i) {
    const bool is_space = IsPythonSpace(piece[i]);
    if (run == 0 || is_space != run_is_space) {
      run = 1;
      run_is_space = is_space;
    } else if (++run > limit) {
      ends.push_back(i);
      run = 1;
    }
  }
  ends.push_back(piece.size());
  return ends;
}

}  // namespace

std::vector<size_t> SplitText(std::span<const char32_t> text, const SplitLimits& limits) {
  const size_t piece_size = std::max<size_t>(1, limits.piece);
  std::vector<size_t> chunks;
  for (size_t begin = 0; begin < text.size(); begin += piece_size) {
    const auto piece = text.subspan(begin, std::min(piece_size, text.size() - begin));
    size_t part_begin = 0;
    for (const size_t part_end : CutLongRuns(piece, std::max<size_t>(1, limits.same_run))) {
      const Scanner scanner(piece.subspan(part_begin, part_end - part_begin));
      for (size_t i = 0; i < part_end - part_begin;) {
        i = scanner.ChunkEnd(i);
        chunks.push_back(begin + part_begin + i);
      }
      part_begin = part_end;
    }
  }
  return chunks;
}

}  // namespace mk
