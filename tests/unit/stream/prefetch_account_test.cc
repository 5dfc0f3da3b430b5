#include "engine/stream/prefetch_account.h"

#include <gtest/gtest.h>

namespace mk {
namespace {

TEST(PrefetchAccount, ASourceThatWastesRestsAndComesBack) {
  PrefetchAccount account(true);
  uint64_t pass = 1;
  for (int i = 0; i < 1000; ++i) account.Useful(pass);
  EXPECT_TRUE(account.stats().active);
  uint64_t last_rest = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 600; ++i) account.Wasted(pass);
    EXPECT_FALSE(account.stats().active);
    uint64_t rest = 0;
    while (!account.stats().active) {
      account.StartPass(++pass);
      ++rest;
      ASSERT_LT(rest, 5000u);
    }
    EXPECT_GT(rest, last_rest);  // longer every time
    last_rest = rest;
  }
}

TEST(PrefetchAccount, AQuarterThatHelpsIsEnough) {
  PrefetchAccount account(true);
  for (int i = 0; i < 4096; ++i) {
    if (i % 4 == 0) {
      account.Late(0);
    } else {
      account.Wasted(0);
    }
  }
  EXPECT_TRUE(account.stats().active);
  EXPECT_EQ(account.stats().late, 1024u);
  EXPECT_EQ(account.stats().wasted, 3072u);
}

TEST(PrefetchAccount, WhatIsForbiddenStaysSo) {
  PrefetchAccount account(false);
  for (uint64_t pass = 0; pass < 5000; ++pass) account.StartPass(pass);
  EXPECT_FALSE(account.stats().active);
}

}  // namespace
}  // namespace mk
