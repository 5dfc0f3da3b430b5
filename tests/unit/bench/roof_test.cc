// The roof's arithmetic on numbers that can be followed by hand.

#include "engine/bench/roof.h"

#include <gtest/gtest.h>

namespace mk {
namespace {

Roof Simple() {
  Roof roof;
  roof.work.spine_bytes = 80'000'000;
  roof.work.expert_bytes = 20'000'000;
  roof.work.all_expert_bytes = 400'000'000;
  roof.work.state_bytes = 1000;
  roof.work.context_bytes = 10;
  roof.work.multiply_adds = 90'000'000;
  roof.work.head_multiply_adds = 10'000'000;
  roof.work.context_multiply_adds = 1000;
  roof.experts = 20;
  roof.top_k = 1;
  roof.spine_gb_per_s = 40;   // 2 ms for the spine
  roof.expert_gb_per_s = 20;  // 1 ms for the experts of a token
  roof.peak_gop_per_s = 1000;
  return roof;
}

TEST(Roof, OneTokenReadsSpineAndItsExperts) {
  const Limit limit = Simple().DecodeLimit(1, 0);
  EXPECT_EQ(limit.by, Limit::By::kReads);
  EXPECT_NEAR(limit.tokens_per_s, 1 / (0.003 + 2000 / 40e9), 1e-6);
}

TEST(Roof, ABatchReadsTheSpineOnceAndSharedExpertsOnce) {
  const Roof roof = Simple();
  EXPECT_NEAR(roof.StepBytes(1), 100e6, 1);
  // Two tokens of 20 experts choose the same one in 1 of 20 cases: 1.95 of them are read.
  EXPECT_NEAR(roof.StepBytes(2), 80e6 + 1.95 * 20e6, 1);
  EXPECT_NEAR(roof.DecodeLimit(2, 0).tokens_per_s, 2 / (0.00395 + 4000 / 40e9), 1e-6);
  EXPECT_NEAR(roof.DecodeLimit(2, 100).tokens_per_s, 2 / (0.00395 + 6000 / 40e9), 1e-6);
  // Never more than all experts.
  EXPECT_LE(roof.StepBytes(1000), 480e6 + 1);
}

TEST(Roof, ArithmeticLimitsWhereItTakesLonger) {
  Roof roof = Simple();
  roof.peak_gop_per_s = 20;
  const Limit limit = roof.DecodeLimit(1, 0);
  EXPECT_EQ(limit.by, Limit::By::kArithmetic);
  EXPECT_NEAR(limit.tokens_per_s, 20e9 / (2 * (100e6 + 1000)), 1e-6);
}

TEST(Roof, WhatIsTouchedIncludesStatesAndCaches) {
  const Roof roof = Simple();
  EXPECT_NEAR(roof.StepBytesTouched(1, 50), 100e6 + 2000 + 500, 1);
  EXPECT_NEAR(roof.StepBytesTouched(2, 50), roof.StepBytes(2) + 5000, 1);
}

TEST(Roof, APromptHasOneRowOfLogitsAndATriangleOfContext) {
  const Roof roof = Simple();
  EXPECT_NEAR(roof.PrefillOperations(3), 2 * (3 * 90e6 + 10e6 + 1000 * (1 + 2 + 3)), 1);
  EXPECT_NEAR(roof.PrefillLimit(3).tokens_per_s, 3 * 1000e9 / roof.PrefillOperations(3), 1e-6);
}

}  // namespace
}  // namespace mk
