#include "eval/task_score.h"

#include <gtest/gtest.h>

namespace mk::eval {
namespace {

Probe ChoiceOf(Rule rule, std::vector<std::string> choices, size_t answer) {
  Probe probe;
  probe.rule = rule;
  probe.choices = std::move(choices);
  probe.answer = answer;
  return probe;
}

TEST(Judge, PicksByLikelihoodOrByLikelihoodPerCharacter) {
  // Per character: -0.5, -0.6, -1.0.
  const std::vector<std::string> choices = {"twelve chars", "five5", "one"};
  const std::vector<Likelihood> likelihoods = {{-6, false}, {-3, false}, {-3.5, true}};
  const Outcome raw = Judge(ChoiceOf(Rule::kChoice, choices, 1), likelihoods);
  EXPECT_TRUE(raw.right && raw.raw && !raw.norm);
  EXPECT_EQ(raw.pick, 1);
  EXPECT_DOUBLE_EQ(raw.margin, 0.5);
  const Outcome norm = Judge(ChoiceOf(Rule::kChoiceNorm, choices, 1), likelihoods);
  EXPECT_TRUE(!norm.right && norm.raw && !norm.norm);
  EXPECT_EQ(norm.pick, 0);
  EXPECT_NEAR(norm.margin, -0.1, 1e-15);
}

TEST(Judge, OfEqualChoicesTheFirstIsPicked) {
  const std::vector<Likelihood> likelihoods = {{-2, false}, {-1, false}, {-1, false}};
  const Outcome outcome = Judge(ChoiceOf(Rule::kChoice, {"a", "b", "c"}, 2), likelihoods);
  EXPECT_EQ(outcome.pick, 1);
  EXPECT_FALSE(outcome.right);
  EXPECT_EQ(outcome.margin, 0);
}

TEST(Judge, GreedyIsRightWhenEveryTokenWasTheLikeliest) {
  Probe probe;
  probe.rule = Rule::kGreedy;
  EXPECT_TRUE(Judge(probe, std::vector<Likelihood>{{-9, true}}).right);
  EXPECT_FALSE(Judge(probe, std::vector<Likelihood>{{-0.1, false}}).right);
  EXPECT_EQ(Judge(probe, std::vector<Likelihood>{{-9, true}}).pick, -1);
}

TEST(JudgeText, ComparesWhatComesBeforeTheStop) {
  Probe probe;
  probe.rule = Rule::kGenerate;
  probe.answers = {"Paris", " Lutetia "};
  probe.until = {"\n", "."};
  for (const char* right : {" Paris", "Paris. It is", "Paris\nQ:", " Lutetia.", "\tParis "}) {
    EXPECT_TRUE(JudgeText(probe, right).right) << right;
  }
  for (const char* wrong : {"", "paris", "Paris, France", ".Paris", "\nParis", "Pari", "Pariß"}) {
    EXPECT_FALSE(JudgeText(probe, wrong).right) << wrong;
  }
}

TEST(Characters, AreThoseOfUnicode) {
  EXPECT_EQ(Characters(""), 0U);
  EXPECT_EQ(Characters("abc"), 3U);
  EXPECT_EQ(Characters("größe"), 5U);
  EXPECT_EQ(Characters("日本"), 2U);
  EXPECT_EQ(Characters("\xF0\x9F\x8D\x8E"), 1U);
}

}  // namespace
}  // namespace mk::eval
