#include "engine/generate/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace mk {
namespace {

// What may be shown of `text`: up to the stop string that is complete first, the longest of those.
std::string Reference(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopMatcher, TheResultDoesNotDependOnHowTheTextArrives) {
  std::mt19937 random(9);
  const auto word = [&](size_t size) {
    std::string out;
    while (out.size() < size) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    size_t longest = 0;
    for (size_t n = random() % 4; n > 0; --n) {
      stops.push_back(word(1 + random() % 6));
      longest = std::max(longest, stops.back().size());
    }
    const std::string text = word(random() % 24);
    const std::string want = Reference(text, stops);
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t i = 0; i < text.size();) {
      const size_t n = std::min<size_t>(1 + random() % 5, text.size() - i);
      shown += matcher.Push(text.substr(i, n));
      i += n;
      ASSERT_EQ(want.substr(0, shown.size()), shown) << "a part of a stop string got out";
      if (!matcher.matched() && longest > 0) {
        ASSERT_LE(i - shown.size(), longest - 1) << "too much is held back";
      }
    }
    const bool found = matcher.matched().has_value();
    shown += matcher.Flush();
    ASSERT_EQ(shown, want);
    ASSERT_EQ(found,
              want != text || (!stops.empty() && Reference(text + "#", stops) != text + "#"));
  }
}

TEST(StopMatcher, NothingComesAfterAMatch) {
  StopMatcher matcher({"", "\n\n", "END"});
  EXPECT_EQ(matcher.Push("a\nE"), "a\n");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("Db"), "");
  EXPECT_EQ(matcher.matched(), 2u);
  EXPECT_EQ(matcher.Push("more"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

}  // namespace
}  // namespace mk
