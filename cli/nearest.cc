#include "cli/nearest.h"

#include <algorithm>
#include <vector>

namespace mk::cli {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Rows of the table of distances between beginnings of a and b: two rows back, one back, this
  // one.
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string Nearest(std::string_view word, std::span<const std::string> names) {
  // Nothing that anybody meant, and the table would be large.
  constexpr size_t kLongest = 64;
  constexpr size_t kLettersPerChange = 3;
  constexpr size_t kShortestBeginning = 2;
  if (word.empty() || word.size() > kLongest) return {};
  const std::string* best = nullptr;
  size_t fewest = std::max<size_t>(1, word.size() / kLettersPerChange) + 1;
  for (const std::string& name : names) {
    const bool begins = word.size() >= kShortestBeginning && name.starts_with(word);
    const size_t distance = begins ? 1 : EditDistance(word, name);
    // One letter changed in a word of one or two is another word.
    if (distance >= fewest || distance >= std::max(word.size(), name.size())) continue;
    fewest = distance;
    best = &name;
  }
  return best != nullptr ? *best : std::string();
}

std::string DidYouMean(std::string_view word, std::span<const std::string> names) {
  const std::string nearest = Nearest(word, names);
  return nearest.empty() ? nearest : "did you mean " + nearest + "?";
}

}  // namespace mk::cli
