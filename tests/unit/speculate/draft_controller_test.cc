#include "engine/speculate/draft_controller.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace mk {
namespace {

// A machine on which a pass of n tokens takes 1 + slope (n - 1) seconds, and a text in which a
// drafted token is right with a certain chance.
class Bench {
 public:
  explicit Bench(double slope, unsigned seed = 1) : slope_(slope), random_(seed) {
    for (const size_t rows : {1, 2, 4, 8, 16, 32, 64}) Measure(rows);
  }

  // One step with a guess of `length` tokens on offer. `right`: whether the i-th is.
  void Step(size_t length, const std::function<bool(size_t)>& right, size_t match = 4,
            size_t others = 0) {
    drafted_ = controller_.Choose(match, length, others, costs_);
    ASSERT_LE(drafted_, length);
    size_t accepted = 0;
    while (accepted < drafted_ && right(accepted)) ++accepted;
    seconds_ += Measure(others + 1 + drafted_);
    tokens_ += 1 + static_cast<double>(accepted);
    controller_.Passed(drafted_, accepted, costs_);
  }
  bool Chance(double chance) { return std::uniform_real_distribution<>(0, 1)(random_) < chance; }
  double tokens() const { return tokens_; }
  double seconds() const { return seconds_; }
  size_t drafted() const { return drafted_; }

 private:
  double Measure(size_t rows) {
    const double seconds = 1 + slope_ * static_cast<double>(rows - 1);
    costs_.Observe(rows, seconds);
    return seconds;
  }

  double slope_;
  std::mt19937 random_;
  DraftController controller_;
  PassCosts costs_;
  size_t drafted_ = 0;
  double tokens_ = 0;
  double seconds_ = 0;
};

TEST(DraftController, DraftsNothingBeforeAnythingWasMeasured) {
  DraftController controller;
  EXPECT_EQ(controller.Choose(8, 24, 0, PassCosts()), 0u);
}

TEST(DraftController, TakesWholeDraftsThatAreAlwaysRight) {
  Bench bench(0.25);
  for (int i = 0; i < 60; ++i) bench.Step(16, [](size_t) { return true; });
  EXPECT_EQ(bench.drafted(), 16u);
  EXPECT_GT(bench.tokens() / bench.seconds(), 2.5);
}

// Where what is guessed is never right, speculation costs what was agreed on and no more, however
// dear a verified token is.
TEST(DraftController, CostsLittleWhereNothingIsRight) {
  for (const double slope : {0.02, 0.2, 0.6, 1.0, 3.0}) {
    Bench bench(slope);
    for (int i = 0; i < 400; ++i) bench.Step(24, [](size_t) { return false; });
    EXPECT_LT(bench.seconds(), 400 * (1 + DraftController::kPaidIn) + 2) << slope;
  }
}

// The same where guesses are right now and then, in a way that misleads.
TEST(DraftController, CostsLittleOnTextThatPretendsToRepeat) {
  for (const double slope : {0.1, 0.5, 1.0}) {
    for (const double chance : {0.05, 0.2, 0.4}) {
      Bench bench(slope, 7);
      for (int i = 0; i < 2000; ++i) {
        bench.Step(
            1 + i % 8, [&](size_t) { return bench.Chance(chance); }, 2 + i % 9);
      }
      EXPECT_GT(bench.tokens() / bench.seconds(), 0.975) << slope << ", " << chance;
    }
  }
}

// A token more costs as much as a pass of its own: nothing can be gained.
TEST(DraftController, DraftsNothingWhereItCannotPay) {
  Bench bench(1.0);
  size_t drafts = 0;
  for (int i = 0; i < 200; ++i) {
    bench.Step(16, [](size_t) { return true; });
    drafts += bench.drafted() > 0 ? 1 : 0;
  }
  EXPECT_LE(drafts, 200 / DraftController::kProbeEvery + 2);
}

TEST(DraftController, ShortensDraftsThatAreSeldomRightToTheEnd) {
  Bench bench(0.3);
  size_t sum = 0;
  for (int i = 0; i < 400; ++i) {
    bench.Step(24, [](size_t position) { return position < 3; });
    if (i >= 300) sum += bench.drafted();
  }
  EXPECT_GE(sum, 100u * 2);
  EXPECT_LE(sum, 100u * 6);
  EXPECT_GT(bench.tokens() / bench.seconds(), 1.5);
}

TEST(DraftController, FindsOutWhenATextBeginsToRepeat) {
  Bench bench(0.25);
  for (int i = 0; i < 500; ++i) bench.Step(16, [](size_t) { return false; });
  const double tokens = bench.tokens();
  const double seconds = bench.seconds();
  for (int i = 0; i < 200; ++i) bench.Step(16, [](size_t) { return true; });
  EXPECT_EQ(bench.drafted(), 16u);
  EXPECT_GT((bench.tokens() - tokens) / (bench.seconds() - seconds), 2);
}

TEST(DraftController, StopsSoonWhenATextNoLongerRepeats) {
  Bench bench(0.25);
  for (int i = 0; i < 300; ++i) bench.Step(24, [](size_t) { return true; });
  const double before = bench.seconds();
  for (int i = 0; i < 300; ++i) bench.Step(24, [](size_t) { return false; });
  // The account of what was gained before is limited.
  EXPECT_LT(bench.seconds() - before,
            300 * (1 + DraftController::kPaidIn) + DraftController::kMostPaid);
  EXPECT_EQ(bench.drafted(), 0u);
}

TEST(DraftController, LearnsEachLengthOfMatchByItself) {
  Bench bench(0.3);
  size_t after_long = 0;
  size_t after_short = 0;
  for (int i = 0; i < 600; ++i) {
    bench.Step(
        8, [](size_t) { return true; }, 12);
    if (i > 300) after_long += bench.drafted();
    bench.Step(
        8, [](size_t) { return false; }, 2);
    if (i > 300) after_short += bench.drafted();
  }
  EXPECT_EQ(after_long, 299u * 8);
  EXPECT_LT(after_short, 100u);
}

// Beside many others a pass is dear already, and a row more brings less.
TEST(DraftController, DraftsLessBesideOthersWhereRowsAreDear) {
  const auto drafted = [](size_t others) {
    Bench bench(0.5);
    for (int i = 0; i < 200; ++i) {
      bench.Step(
          16, [](size_t position) { return position < 2; }, 4, others);
    }
    return bench.drafted();
  };
  EXPECT_GE(drafted(0), 1u);
  EXPECT_LE(drafted(15), drafted(0));
}

TEST(DraftController, TheSameCallsGiveTheSameAnswers) {
  Bench a(0.4, 3);
  Bench b(0.4, 3);
  for (int i = 0; i < 300; ++i) {
    a.Step(8, [&](size_t) { return a.Chance(0.5); });
    b.Step(8, [&](size_t) { return b.Chance(0.5); });
    ASSERT_EQ(a.drafted(), b.drafted());
  }
}

}  // namespace
}  // namespace mk
