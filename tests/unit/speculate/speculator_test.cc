#include "engine/speculate/speculator.h"

#include <gtest/gtest.h>

#include <numeric>

namespace mk {
namespace {

using Ids = std::vector<int32_t>;
constexpr size_t kVocab = 100;

SpeculationOptions Options(uint32_t ngram, uint32_t automaton) {
  return {ngram, automaton, false};
}

Ids DraftOf(Speculator& speculator, const Ids& prompt, const Ids& emitted, size_t most) {
  while (!speculator.CatchUp(prompt, emitted)) {
  }
  const auto draft = speculator.NextDraft(most);
  return {draft.begin(), draft.end()};
}

TEST(Speculator, ProposesFromPromptAndAnswerTogether) {
  for (const auto& options : {Options(4, 0), Options(0, 4), Options(2, 4)}) {
    Speculator speculator(options, kVocab, nullptr);
    EXPECT_EQ(DraftOf(speculator, {1, 2, 3, 4, 5, 6}, {9, 1, 2}, 64), (Ids{3, 4, 5, 6}));
  }
}

TEST(Speculator, TheAutomatonIsAskedFirst) {
  // After 1 2: once 3, and the last time 4 twice over, as the automaton counts; the n-gram rule
  // takes the most recent.
  const Ids text = {1, 2, 4, 0, 1, 2, 4, 0, 5, 1, 2, 3, 7, 1, 2};
  Speculator ngram(Options(1, 0), kVocab, nullptr);
  EXPECT_EQ(DraftOf(ngram, text, {}, 1), Ids{3});
  Speculator both(Options(1, 1), kVocab, nullptr);
  EXPECT_EQ(DraftOf(both, text, {}, 1), Ids{4});
}

TEST(Speculator, EitherMayDraftAsMuchAsTheLargerOptionSays) {
  Ids text(40);
  std::iota(text.begin(), text.end(), 0);
  text.insert(text.end(), {0, 1, 2});
  Speculator speculator(Options(3, 20), kVocab, nullptr);
  EXPECT_EQ(DraftOf(speculator, text, {}, 64).size(), 20u);
  EXPECT_EQ(DraftOf(speculator, text, {}, 7).size(), 7u);
  EXPECT_TRUE(DraftOf(speculator, text, {}, 0).empty());
}

TEST(Speculator, GoesOnWithThePeriodOfATextThatRepeatsItself) {
  Speculator speculator(Options(8, 0), kVocab, nullptr);
  EXPECT_EQ(DraftOf(speculator, {1, 2, 3, 1, 2, 3}, {1, 2, 3}, 64), (Ids{1, 2, 3, 1, 2, 3, 1, 2}));
}

// Tokens that a state was made with somewhere else need not be of the vocabulary.
TEST(Speculator, ProposesNoTokenOutsideOfTheVocabulary) {
  Speculator speculator(Options(8, 0), kVocab, nullptr);
  EXPECT_EQ(DraftOf(speculator, {1, 2, 3, 4, 100, 5, 1, 2}, {}, 8), (Ids{3, 4}));
  EXPECT_TRUE(DraftOf(speculator, {1, 2, 3, 4, 100, 5, 1, 2}, {3, 4}, 8).empty());
  Speculator negative(Options(8, 0), kVocab, nullptr);
  EXPECT_EQ(DraftOf(negative, {1, 2, 3, -1, 1, 2}, {}, 8), Ids{3});
}

TEST(Speculator, LooksAtALongTextInPieces) {
  Ids text(100'000);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>(i * i % 97);
  Speculator speculator(Options(4, 0), kVocab, nullptr);
  size_t calls = 1;
  while (!speculator.CatchUp(text, {})) ++calls;
  EXPECT_GT(calls, 20u);
}

// The oldest half goes when there is too much, and what is left is still found.
TEST(Speculator, HoldsAWindowOfAVeryLongText) {
  Ids text(kMaxHistory + 5000);
  uint32_t state = 1;
  for (int32_t& id : text) {
    state = state * 1664525 + 1013904223;
    id = static_cast<int32_t>(state >> 16) % 30'000;
  }
  Speculator speculator(Options(4, 0), 30'000, nullptr);
  Ids emitted(text.end() - 3000, text.end() - 2992);
  const Ids want(text.end() - 2992, text.end() - 2988);
  EXPECT_EQ(DraftOf(speculator, text, emitted, 4), want);
  // What was at the beginning is gone: nothing follows that is known.
  emitted.insert(emitted.end(), text.begin(), text.begin() + 8);
  EXPECT_NE(DraftOf(speculator, text, emitted, 4), Ids(text.begin() + 8, text.begin() + 12));
}

TEST(Speculator, CountsWhatBecameOfDrafts) {
  Speculator speculator(Options(3, 0), kVocab, nullptr);
  Ids emitted = {1, 2, 3, 4, 1, 2};
  EXPECT_EQ(DraftOf(speculator, {}, emitted, 3), (Ids{3, 4, 1}));
  speculator.Took(4, 4, 0.5);
  speculator.Verified(3, 2, false, 0.25);
  emitted.insert(emitted.end(), {3, 4, 9});
  EXPECT_TRUE(DraftOf(speculator, {}, emitted, 3).empty());
  speculator.Took(1, 1, 0.5);
  speculator.Verified(0, 0, true, 0);
  emitted.insert(emitted.end(), {1, 2});
  EXPECT_EQ(DraftOf(speculator, {}, emitted, 2), (Ids{3, 4}));
  speculator.Took(3, 3, 0.5);
  speculator.Verified(2, 2, true, 0);
  const SpeculationStats& stats = speculator.stats();
  EXPECT_EQ(stats.passes, 2u);
  EXPECT_EQ(stats.singles, 1u);
  EXPECT_EQ(stats.drafted, 5u);
  EXPECT_EQ(stats.accepted, 4u);
  EXPECT_EQ(stats.rejected(), 1u);
  EXPECT_EQ(stats.bonus, 1u);
  EXPECT_EQ(stats.drafted_at, (std::vector<uint64_t>{2, 2, 1}));
  EXPECT_EQ(stats.accepted_at, (std::vector<uint64_t>{2, 2, 0}));
  EXPECT_DOUBLE_EQ(stats.verify_seconds, 1.0);
  EXPECT_DOUBLE_EQ(stats.rollback_seconds, 0.25);
}

}  // namespace
}  // namespace mk
