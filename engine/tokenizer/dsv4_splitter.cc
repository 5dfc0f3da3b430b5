#include "engine/tokenizer/dsv4_splitter.h"

#include <algorithm>

#include "engine/tokenizer/unicode.h"

namespace mk {

const std::string_view kDsv4SplitPatterns[3] = {
    "\\p{N}{1,3}",
    "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

namespace {

constexpr uint32_t kWord = kLetters | kMarks;
constexpr uint32_t kSigns = kPunctuation | kSymbols;
constexpr size_t kDigitsPerPiece = 3;

bool IsNewline(char32_t c) {
  return c == U'\n' || c == U'\r';
}

bool IsAsciiLetter(char32_t c) {
  return (c >= U'A' && c <= U'Z') || (c >= U'a' && c <= U'z');
}

// Characters of the second cut.
bool IsHanOrKana(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
}

class Cutter {
 public:
  explicit Cutter(std::span<const char32_t> text) : text_(text), properties_(text.size()) {
    std::transform(text.begin(), text.end(), properties_.begin(), PropertiesOf);
  }

  std::vector<size_t> Cut() {
    for (size_t i = 0; i < text_.size();) {
      const bool number = Is(i, kNumbers);
      const size_t end =
          RunEnd(i, text_.size(), [&](size_t k) { return Is(k, kNumbers) == number; });
      if (number) {
        CutNumber(i, end);
      } else {
        CutScripts(i, end);
      }
      i = end;
    }
    return std::move(ends_);
  }

 private:
  bool Is(size_t i, uint32_t categories) const { return properties_[i].Is(categories); }

  // First position in [i, end] where the test fails.
  template <typename Test>
  static size_t RunEnd(size_t i, size_t end, Test test) {
    while (i < end && test(i)) ++i;
    return i;
  }
  size_t RunEndOf(size_t i, size_t end, uint32_t categories) const {
    return RunEnd(i, end, [&](size_t k) { return Is(k, categories); });
  }

  // The first cut: three digits at a time. Nothing in the other cuts matches a number.
  void CutNumber(size_t i, size_t end) {
    while (i < end) {
      i = std::min(end, i + kDigitsPerPiece);
      ends_.push_back(i);
    }
  }

  // The second cut, of a piece without numbers.
  void CutScripts(size_t i, size_t end) {
    while (i < end) {
      const bool inside = IsHanOrKana(text_[i]);
      const size_t next = RunEnd(i, end, [&](size_t k) { return IsHanOrKana(text_[k]) == inside; });
      CutWords(i, next);
      i = next;
    }
  }

  // The third cut. Characters that no rule takes gather in one piece until one does.
  void CutWords(size_t i, size_t end) {
    size_t piece = i;
    while (i < end) {
      const size_t match = MatchEnd(i, end);
      if (match == i) {
        ++i;
        continue;
      }
      if (i > piece) ends_.push_back(i);
      ends_.push_back(match);
      piece = i = match;
    }
    if (end > piece) ends_.push_back(end);
  }

  // End of the match of the third cut at i < end; i when there is none.
  size_t MatchEnd(size_t i, size_t end) const {
    const char32_t c = text_[i];
    const bool sign = Is(i, kSigns);
    if (sign && c < 0x80 && i + 1 < end && IsAsciiLetter(text_[i + 1])) {  // A
      return RunEnd(i + 1, end, [&](size_t k) { return IsAsciiLetter(text_[k]); });
    }
    const bool word = Is(i, kWord);
    const bool leads_word = !word && !sign && !IsNewline(c) && i + 1 < end && Is(i + 1, kWord);
    if (word || leads_word) return RunEndOf(i + 1, end, kWord);  // B
    const bool leads_signs = c == U' ' && i + 1 < end && Is(i + 1, kSigns);
    if (sign || leads_signs) {  // C
      const size_t signs = RunEndOf(i + 1, end, kSigns);
      return RunEnd(signs, end, [&](size_t k) { return IsNewline(text_[k]); });
    }
    return SpaceEnd(i, end);
  }

  // Rules D to F; i when there is no white space at i.
  size_t SpaceEnd(size_t i, size_t end) const {
    const size_t run = RunEnd(i, end, [&](size_t k) { return properties_[k].IsWhiteSpace(); });
    for (size_t k = run; k > i; --k) {
      if (IsNewline(text_[k - 1])) return k;
    }
    return run < end && run > i + 1 ? run - 1 : run;
  }

  std::span<const char32_t> text_;
  std::vector<CharProperties> properties_;
  std::vector<size_t> ends_;
};

}  // namespace

std::vector<size_t> SplitDsv4Text(std::span<const char32_t> text) {
  return Cutter(text).Cut();
}

}  // namespace mk
