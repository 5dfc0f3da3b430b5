#include "engine/speculate/ngram_proposer.h"

#include <gtest/gtest.h>

#include <random>

namespace mk {
namespace {

using Ids = std::vector<int32_t>;

NgramProposer Fed(const Ids& ids) {
  NgramProposer proposer;
  for (const int32_t id : ids) proposer.Feed(id);
  return proposer;
}

// The rule as it is written down: longest suffix first, then the most recent occurrence.
Draft BruteForce(const Ids& text, size_t most) {
  for (size_t s = 8; s >= 2; --s) {
    if (text.size() <= s) continue;
    const auto suffix = text.end() - static_cast<ptrdiff_t>(s);
    for (size_t i = text.size() - s; i-- > 0;) {
      if (!std::equal(suffix, text.end(), text.begin() + static_cast<ptrdiff_t>(i))) continue;
      const size_t end = std::min(i + s + most, text.size());
      return {Ids(text.begin() + static_cast<ptrdiff_t>(i + s),
                  text.begin() + static_cast<ptrdiff_t>(end)),
              s};
    }
  }
  return {};
}

TEST(NgramProposer, VectorsOfTheSpecification) {
  const Draft draft = Fed({1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3}).Propose(4);
  EXPECT_EQ(draft.tokens, (Ids{9, 1, 2, 3}));
  EXPECT_EQ(draft.match, 3u);
  EXPECT_EQ(Fed({7, 7, 7}).Propose(4).tokens, Ids{7});
  EXPECT_TRUE(Fed({1, 2, 3}).Propose(4).tokens.empty());
  EXPECT_EQ(Fed({1, 2, 1, 2}).Propose(3).tokens, (Ids{1, 2}));
  EXPECT_TRUE(Fed({}).Propose(4).tokens.empty());
}

TEST(NgramProposer, EqualsTheRuleOnRandomTexts) {
  std::mt19937 random(1);
  size_t proposals = 0;
  for (int round = 0; round < 150; ++round) {
    const int kinds = 2 + static_cast<int>(random() % 12);
    NgramProposer proposer;
    Ids text;
    while (text.size() < 200) {
      // Sometimes a piece of what was there comes again.
      if (text.size() > 20 && random() % 25 == 0) {
        const size_t from = random() % (text.size() - 15);
        for (size_t i = 0; i < 12; ++i) {
          text.push_back(text[from + i]);
          proposer.Feed(text.back());
        }
      }
      text.push_back(static_cast<int32_t>(random()) % kinds);
      proposer.Feed(text.back());
      const size_t most = 1 + random() % 24;
      const Draft want = BruteForce(text, most);
      const Draft got = proposer.Propose(most);
      ASSERT_EQ(got.tokens, want.tokens) << "round " << round << ", length " << text.size();
      ASSERT_EQ(got.match, want.match);
      proposals += got.tokens.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(proposals, 5000u);
}

// More tokens than 16 bits of a hash tell apart: what a slot stands for is told by the tokens.
TEST(NgramProposer, FindsEveryNgramOfALongText) {
  std::mt19937 random(2);
  Ids text;
  for (int i = 0; i < 300'000; ++i) text.push_back(static_cast<int32_t>(random() % 50'000));
  NgramProposer proposer = Fed(text);
  EXPECT_LE(proposer.bytes(), NgramProposer::MaxBytes(text.size()));
  for (int i = 0; i < 2000; ++i) {
    const size_t from = static_cast<size_t>(i) * 140;
    for (size_t k = 0; k < 8; ++k) proposer.Feed(text[from + k]);
    const Draft draft = proposer.Propose(5);
    ASSERT_EQ(draft.match, 8u);
    const auto want = text.begin() + static_cast<ptrdiff_t>(from + 8);
    ASSERT_EQ(draft.tokens, Ids(want, want + 5));
  }
}

TEST(NgramProposer, ClearForgetsEverything) {
  NgramProposer proposer = Fed({1, 2, 1, 2});
  proposer.Clear();
  EXPECT_EQ(proposer.size(), 0u);
  EXPECT_TRUE(proposer.Propose(4).tokens.empty());
  for (const int32_t id : {1, 2}) proposer.Feed(id);
  EXPECT_TRUE(proposer.Propose(4).tokens.empty());
}

}  // namespace
}  // namespace mk
