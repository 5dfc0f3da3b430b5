#include "engine/speculate/suffix_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

namespace mk {
namespace {

using Ids = std::vector<int32_t>;

std::string Continue(const std::string& text, size_t most, size_t shortest = 2) {
  SuffixAutomaton automaton(shortest);
  for (const char c : text) automaton.Feed(static_cast<uint8_t>(c));
  std::string out;
  for (const int32_t id : automaton.Propose(most).tokens) out.push_back(static_cast<char>(id));
  return out;
}

TEST(SuffixAutomaton, VectorsOfTheSpecification) {
  EXPECT_EQ(Continue("zab cd ab cd ab cd ", 6), "ab cd ");
  EXPECT_EQ(Continue("ab cd ab cd ab cd ", 6), "ab cd ");
  // Only "x" occurred before: a match of one token.
  EXPECT_EQ(Continue("xaxaxaxb x", 4, 1).substr(0, 1), "a");
  EXPECT_EQ(Continue("xaxaxaxb x", 4), "");
  EXPECT_EQ(Continue("abc", 4), "");
  EXPECT_EQ(Continue("", 4), "");
  EXPECT_EQ(Continue("the quick brown fox the quick brown fox the q", 6), "uick b");
}

TEST(SuffixAutomaton, TheMoreFrequentContinuationComesFirst) {
  EXPECT_EQ(Continue("1abc2abc3abd4ab", 1), "c");
  EXPECT_EQ(Continue("abc abd ab", 1), "d");  // of equal ones the latest
}

TEST(SuffixAutomaton, CountsFadeUntilNothingIsProposed) {
  // "ab" was followed by "c" once, more than two half-lives ago.
  std::string text = "abc";
  for (int i = 0; i < 400; ++i) text += static_cast<char>('A' + i % 3);
  EXPECT_EQ(Continue(text + "ab", 1), "c");
  for (int i = 0; i < 200; ++i) text += static_cast<char>('A' + i % 3);
  EXPECT_EQ(Continue(text + "ab", 1), "");
}

// The same definition over substrings written out: a class holds those that end at the same places
// and is named by its longest.
class Naive {
 public:
  explicit Naive(size_t shortest) : shortest_(shortest) {}

  void Feed(int32_t token) {
    ++tokens_;
    const auto chain = Chain(text_);
    for (size_t i = 0; i < chain.size() && i < SuffixAutomaton::kMaxLinks; ++i) {
      Count(counts_[chain[i]], token);
    }
    std::map<Ids, Ids> before;  // every substring, and the name of its class
    for (const Ids& part : Parts()) before[part] = NameOf(part);
    text_.push_back(token);
    std::map<Ids, Counts> counts;
    std::set<Ids> names;
    for (const Ids& part : Parts()) names.insert(NameOf(part));
    for (const Ids& name : names) {
      // One that was split off has the counts of the class it was in.
      const auto was = before.find(name);
      if (was != before.end()) counts[name] = counts_[was->second];
    }
    counts_ = std::move(counts);
  }

  Draft Propose(size_t most) {
    Draft draft;
    const auto chain = Chain(text_);
    if (chain.size() < 2) return draft;
    Ids context = chain[1];
    while (draft.tokens.size() < most) {
      std::optional<int32_t> best;
      while (context.size() >= std::max<size_t>(shortest_, 1)) {
        best = Best(counts_[NameOf(context)]);
        if (best) break;
        // Of the next class the longest one that is a suffix.
        const Ids name = NameOf(context);
        while (!context.empty() && NameOf(context) == name) context.erase(context.begin());
      }
      if (!best || context.size() < shortest_) break;
      if (draft.tokens.empty()) draft.match = context.size();
      draft.tokens.push_back(*best);
      context.push_back(*best);
    }
    return draft;
  }

 private:
  struct Counted {
    float count = 0;
    uint32_t stamp = 0;
  };
  using Counts = std::map<int32_t, Counted>;

  float Score(const Counted& counted) const {
    const double age = static_cast<double>(tokens_ - counted.stamp) / SuffixAutomaton::kHalfLife;
    return static_cast<float>(static_cast<double>(counted.count) * std::exp2(-age));
  }
  // Best first.
  std::vector<int32_t> Ranked(const Counts& counts) const {
    std::vector<int32_t> ids;
    for (const auto& [id, counted] : counts) ids.push_back(id);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      const Counted& x = counts.at(a);
      const Counted& y = counts.at(b);
      return Score(x) != Score(y) ? Score(x) > Score(y) : x.stamp > y.stamp;
    });
    return ids;
  }
  std::optional<int32_t> Best(const Counts& counts) const {
    const auto ranked = Ranked(counts);
    if (ranked.empty() || Score(counts.at(ranked[0])) < SuffixAutomaton::kLeastScore) return {};
    return ranked[0];
  }
  void Count(Counts& counts, int32_t token) const {
    if (counts.count(token) == 0 && counts.size() == SuffixAutomaton::kMaxSuccessors) {
      counts.erase(Ranked(counts).back());
    }
    Counted& counted = counts[token];
    counted.count = counted.count > 0 ? Score(counted) + 1 : 1;
    counted.stamp = tokens_;
  }

  std::set<Ids> Parts() const {
    std::set<Ids> parts;
    for (size_t i = 0; i < text_.size(); ++i) {
      for (size_t n = 1; i + n <= text_.size(); ++n) parts.insert(Part(i, n));
    }
    return parts;
  }
  Ids Part(size_t at, size_t n) const {
    return {text_.begin() + static_cast<ptrdiff_t>(at),
            text_.begin() + static_cast<ptrdiff_t>(at + n)};
  }
  std::vector<size_t> Ends(const Ids& part) const {
    std::vector<size_t> ends;
    for (size_t i = 0; i + part.size() <= text_.size(); ++i) {
      if (Part(i, part.size()) == part) ends.push_back(i + part.size());
    }
    return ends;
  }
  // The longest substring that ends wherever `part` does.
  Ids NameOf(const Ids& part) const {
    const auto ends = Ends(part);
    size_t n = part.size();
    const auto same = [&](size_t length) {
      if (length > ends.front()) return false;
      const Ids first = Part(ends.front() - length, length);
      for (const size_t end : ends) {
        if (length > end || Part(end - length, length) != first) return false;
      }
      return true;
    };
    while (same(n + 1)) ++n;
    return Part(ends.front() - n, n);
  }
  // Names of the classes of all suffixes, longest first, without the empty one.
  std::vector<Ids> Chain(Ids suffix) const {
    std::vector<Ids> chain;
    for (; !suffix.empty(); suffix.erase(suffix.begin())) {
      Ids name = NameOf(suffix);
      if (chain.empty() || chain.back() != name) chain.push_back(std::move(name));
    }
    return chain;
  }

  size_t shortest_;
  uint32_t tokens_ = 0;
  Ids text_;
  std::map<Ids, Counts> counts_;
};

TEST(SuffixAutomaton, EqualsTheDefinitionOnRandomTexts) {
  std::mt19937 random(3);
  size_t proposals = 0;
  for (int round = 0; round < 60; ++round) {
    const int kinds = 1 + round % 12;
    const size_t shortest = 1 + random() % 3;
    SuffixAutomaton automaton(shortest);
    Naive naive(shortest);
    for (size_t n = 0; n < 26; ++n) {
      const auto token = static_cast<int32_t>(random() % static_cast<uint32_t>(kinds));
      automaton.Feed(token);
      naive.Feed(token);
      const Draft want = naive.Propose(7);
      const Draft got = automaton.Propose(7);
      ASSERT_EQ(got.tokens, want.tokens) << "round " << round << ", length " << n + 1;
      ASSERT_EQ(got.match, want.match);
      proposals += got.tokens.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(proposals, 300u);
}

// One state that a dozen different tokens follow.
TEST(SuffixAutomaton, CountsTheBestEightSuccessorsLikeTheDefinition) {
  SuffixAutomaton automaton;
  Naive naive(2);
  const auto feed = [&](int32_t token) {
    automaton.Feed(token);
    naive.Feed(token);
  };
  std::mt19937 random(4);
  for (int i = 0; i < 14; ++i) {
    for (const int32_t token : {1, 2}) feed(token);
    ASSERT_EQ(automaton.Propose(3).tokens, naive.Propose(3).tokens) << i;
    feed(10 + static_cast<int32_t>(random() % 11));
  }
}

TEST(SuffixAutomaton, HoldsNoMoreThanItSays) {
  // Texts with many states, many edges, and one that repeats itself.
  for (const int kinds : {1, 2, 50, 100'000}) {
    std::mt19937 random(5);
    SuffixAutomaton automaton;
    for (int i = 0; i < 20'000; ++i) {
      automaton.Feed(static_cast<int32_t>(random() % static_cast<uint32_t>(kinds)));
    }
    EXPECT_EQ(automaton.size(), 20'000u);
    EXPECT_LE(automaton.bytes(), SuffixAutomaton::MaxBytes(20'000)) << kinds;
  }
}

TEST(SuffixAutomaton, ClearForgetsEverything) {
  SuffixAutomaton automaton;
  for (const int32_t id : {1, 2, 3, 1, 2}) automaton.Feed(id);
  EXPECT_EQ(automaton.Propose(1).tokens, Ids{3});
  automaton.Clear();
  EXPECT_EQ(automaton.size(), 0u);
  for (const int32_t id : {1, 2}) automaton.Feed(id);
  EXPECT_TRUE(automaton.Propose(1).tokens.empty());
}

}  // namespace
}  // namespace mk
