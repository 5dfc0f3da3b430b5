#include "eval/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace mk::eval {
namespace {

struct Pairs {
  std::vector<double> a;
  std::vector<double> b;
  std::vector<double> weights;
  // Less is better, unless said otherwise.
  PairedResult Result(double margin = 0.01, bool less = true) const {
    return Compare({"measure", a, b, weights, less, margin}, {});
  }
};

// `b` is `shift` more than `a` in every unit, and wavers about it.
Pairs Shifted(double shift, double waver, size_t count = 40) {
  Pairs pairs;
  for (size_t i = 0; i < count; ++i) {
    const auto at = static_cast<double>(i);
    pairs.a.push_back(2 + std::sin(at));
    pairs.b.push_back(pairs.a.back() + shift + waver * std::cos(7 * at));
    pairs.weights.push_back(1);
  }
  return pairs;
}

TEST(Compare, TellsBetterFromWorse) {
  EXPECT_EQ(Shifted(0.5, 0.1).Result().verdict, "worse");
  EXPECT_EQ(Shifted(-0.5, 0.1).Result().verdict, "better");
  EXPECT_EQ(Shifted(0.5, 0.1).Result(0.01, false).verdict, "better");
  EXPECT_EQ(Shifted(-0.5, 0.1).Result(0.01, false).verdict, "worse");
  EXPECT_EQ(Shifted(0.001, 0.001).Result().verdict, "equivalent");
  EXPECT_EQ(Shifted(0.01, 2).Result().verdict, "no difference shown");
  EXPECT_EQ(Shifted(0.5, 0.1, 9).Result().verdict, "too few to tell");
}

TEST(Compare, OfAModelWithItselfFindsNothing) {
  Pairs pairs = Shifted(0, 0);
  const PairedResult result = pairs.Result();
  EXPECT_EQ(result.difference.estimate, 0);
  EXPECT_EQ(result.difference.bounds.low, 0);
  EXPECT_EQ(result.difference.bounds.high, 0);
  EXPECT_EQ(result.ties, 40U);
  EXPECT_EQ(result.sign_p, 1);
  EXPECT_EQ(result.detectable, 0);
  EXPECT_EQ(result.verdict, "equivalent");
}

// Six documents, by hand: bits 10 20 30 40 50 60 and 11 19 33 44 50 66 of 10 .. 60 bytes.
TEST(Compare, OfSixDocumentsIsWhatAHandComputes) {
  const Pairs pairs{{10, 20, 30, 40, 50, 60}, {11, 19, 33, 44, 50, 66}, {10, 20, 30, 40, 50, 60}};
  const PairedResult result = pairs.Result();
  EXPECT_DOUBLE_EQ(result.a, 1);
  EXPECT_DOUBLE_EQ(result.b, 223.0 / 210);
  EXPECT_DOUBLE_EQ(result.difference.estimate, 13.0 / 210);
  EXPECT_EQ(result.better, 1U);
  EXPECT_EQ(result.worse, 4U);
  EXPECT_EQ(result.ties, 1U);
  EXPECT_DOUBLE_EQ(result.sign_p, 2 * 6.0 / 32);
  // Differences over the mean weight of 35: 1 -1 3 4 0 6, mean 13/6, sum of squares 63.
  const double sd = std::sqrt((63 - 169.0 / 6) / 5) / 35;
  EXPECT_NEAR(result.detectable, (1.959963984540054 + 0.8416212335729143) * sd / std::sqrt(6.0),
              1e-12);
}

}  // namespace
}  // namespace mk::eval
