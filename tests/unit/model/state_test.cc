// States of sequences: shared by copies until one writes, saved as arrays, and restored to
// sequences that go on with the same bits.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/model/state.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/saved_state.h"

namespace mk::test {
namespace {

class State : public testing::TestWithParam<std::tuple<Kind, Precision>> {
 protected:
  State() : kind_(std::get<0>(GetParam())), model_(kind_, std::get<1>(GetParam())) {}

  std::vector<int32_t> Tokens(size_t count, uint32_t seed) const {
    return RandomTokens(count, model_->info().vocab, seed);
  }
  std::unique_ptr<Sequence> Make(bool expanded = false) const {
    SequenceOptions options;
    options.precision = std::get<1>(GetParam());
    options.expanded_kv = expanded;
    return MakeSequence(*model_, options);
  }
  std::vector<float> Run(Sequence& sequence, std::span<const int32_t> tokens) {
    return Feed(*model_, *executor_, sequence, tokens);
  }
  // Some tokens at once, then one by one.
  std::vector<float> GoOn(Sequence& sequence, std::span<const int32_t> tokens) {
    const size_t half = tokens.size() / 2;
    std::vector<float> logits;
    if (half > 0) logits = Run(sequence, tokens.first(half));
    const std::vector<float> rest =
        FeedInSegments(*model_, *executor_, sequence, tokens.subspan(half), 1);
    logits.insert(logits.end(), rest.begin(), rest.end());
    return logits;
  }
  std::unique_ptr<Sequence> Clone(const Sequence& sequence) const {
    Result<std::unique_ptr<Sequence>> copy = sequence.Clone();
    EXPECT_TRUE(copy);
    return std::move(*copy);
  }
  size_t OwnBytes(const Sequence& sequence) const {
    return (*KeeperOf(*model_))->OwnBytes(sequence);
  }
  // A few lengths about pages, blocks and windows, and some at random.
  static std::vector<size_t> Lengths(uint32_t seed) {
    std::vector<size_t> lengths = {1, 15, 63, 64, 65, 128, 200};
    std::mt19937 random(seed);
    for (int i = 0; i < 5; ++i) lengths.push_back(1 + random() % 260);
    return lengths;
  }

  const Kind kind_;
  RandomModel model_;
  std::unique_ptr<Executor> executor_ = MakeExecutor(2);
};

TEST_P(State, ACopySharesEverythingUntilOneOfThemWrites) {
  const std::unique_ptr<Sequence> original = Make();
  Run(*original, Tokens(200, 1));
  EXPECT_EQ(OwnBytes(*original), original->state_bytes());
  std::unique_ptr<Sequence> copy = Clone(*original);
  EXPECT_EQ(OwnBytes(*original), 0u);
  EXPECT_EQ(OwnBytes(*copy), 0u);

  Run(*copy, Tokens(1, 2));
  // What moves on is copied; the full pages stay shared.
  EXPECT_GE(OwnBytes(*copy), model_->info().state_bytes);
  EXPECT_LT(OwnBytes(*copy), copy->state_bytes());
  EXPECT_EQ(copy->state_bytes() - OwnBytes(*copy), original->state_bytes() - OwnBytes(*original));
  copy.reset();
  EXPECT_EQ(OwnBytes(*original), original->state_bytes());
}

TEST_P(State, ManyCopiesOfOneStateStayApart) {
  for (const bool expanded : {false, true}) {
    if (expanded && kind_ == Kind::kDsv4) continue;
    for (const size_t length : Lengths(3)) {
      const std::vector<int32_t> prompt = Tokens(length, 4);
      const std::unique_ptr<Sequence> root = Make(expanded);
      Run(*root, prompt);
      const SavedState before = SaveState(*model_, *root);
      std::vector<std::unique_ptr<Sequence>> copies;
      std::vector<std::vector<float>> got(3);
      for (int i = 0; i < 3; ++i) copies.push_back(Clone(*root));
      // In turn, so that each writes while the others hold the same pages.
      for (size_t t = 0; t < 24; t += 6) {
        for (uint32_t i = 0; i < 3; ++i) {
          const std::vector<int32_t> tokens = Tokens(24, 10 + i);
          const auto part = Run(*copies[i], std::span(tokens).subspan(t, 6));
          got[i].insert(got[i].end(), part.begin(), part.end());
        }
      }
      for (uint32_t i = 0; i < 3; ++i) {
        const std::unique_ptr<Sequence> alone = Make(expanded);
        Run(*alone, prompt);
        EXPECT_TRUE(
            SameBits(FeedInSegments(*model_, *executor_, *alone, Tokens(24, 10 + i), 6), got[i]))
            << "copy " << i << " after " << length;
      }
      EXPECT_TRUE(SaveState(*model_, *root) == before) << "after " << length;
    }
  }
}

TEST_P(State, ARestoredSequenceGoesOnWithTheSameBits) {
  for (const bool expanded : {false, true}) {
    if (expanded && kind_ == Kind::kDsv4) continue;
    for (const size_t length : Lengths(5)) {
      const std::unique_ptr<Sequence> sequence = Make(expanded);
      GoOn(*sequence, Tokens(length, 6));
      const SavedState saved = SaveState(*model_, *sequence);
      const std::unique_ptr<Sequence> restored = RestoreState(*model_, saved);
      EXPECT_EQ(restored->length(), length);
      EXPECT_EQ(restored->rewindable(), sequence->rewindable());
      EXPECT_TRUE(SaveState(*model_, *restored) == saved) << length;
      const std::vector<int32_t> next = Tokens(30, 7);
      EXPECT_TRUE(SameBits(GoOn(*restored, next), GoOn(*sequence, next))) << length;
      EXPECT_TRUE(SaveState(*model_, *restored) == SaveState(*model_, *sequence)) << length;
    }
  }
}

TEST_P(State, ACopyIsSavedAsItWasWhenItsTwinHasGoneOn) {
  for (const size_t length : Lengths(8)) {
    const std::unique_ptr<Sequence> original = Make();
    Run(*original, Tokens(length, 9));
    const std::unique_ptr<Sequence> copy = Clone(*original);
    Run(*original, Tokens(40, 10));
    const std::unique_ptr<Sequence> restored = RestoreState(*model_, SaveState(*model_, *copy));
    const std::unique_ptr<Sequence> alone = Make();
    Run(*alone, Tokens(length, 9));
    const std::vector<int32_t> next = Tokens(20, 11);
    EXPECT_TRUE(SameBits(GoOn(*restored, next), GoOn(*alone, next))) << length;
  }
}

TEST_P(State, AnEmptySequenceIsAStateToo) {
  const std::unique_ptr<Sequence> fresh = Make();
  const std::unique_ptr<Sequence> restored = RestoreState(*model_, SaveState(*model_, *fresh));
  const std::vector<int32_t> tokens = Tokens(20, 12);
  EXPECT_TRUE(SameBits(Run(*restored, tokens), Run(*fresh, tokens)));
}

TEST_P(State, ARestoredSequenceGoesBackAsFar) {
  if (kind_ != Kind::kDsv4) GTEST_SKIP() << "K3 states only go forward";
  for (const size_t length : Lengths(13)) {
    for (const size_t back : {1, 5, 16}) {
      const std::unique_ptr<Sequence> sequence = Make();
      Run(*sequence, Tokens(length, 14));
      if (back > sequence->rewindable()) continue;
      // Gone back before it is saved, and gone back on after.
      ASSERT_TRUE(sequence->Rewind(length - back));
      const std::unique_ptr<Sequence> restored =
          RestoreState(*model_, SaveState(*model_, *sequence));
      ASSERT_EQ(restored->rewindable(), sequence->rewindable()) << length << " - " << back;
      const size_t more = sequence->rewindable();
      EXPECT_FALSE(restored->Rewind(restored->length() - more - 1)) << length << " - " << back;
      for (Sequence* each : {sequence.get(), restored.get()}) {
        ASSERT_TRUE(each->Rewind(each->length() - more));
      }
      const std::vector<int32_t> next = Tokens(20, 15);
      EXPECT_TRUE(SameBits(GoOn(*restored, next), GoOn(*sequence, next)))
          << length << " - " << back;
    }
  }
}

// Every array of a state, damaged in its first and its last element.
TEST_P(State, ValuesThatNoStateHoldsAreRefused) {
  const std::unique_ptr<Sequence> sequence = Make();
  Run(*sequence, Tokens(70, 16));
  const SavedState good = SaveState(*model_, *sequence);
  for (size_t i = 0; i < good.sections.size(); ++i) {
    const StateSection& section = good.sections[i];
    if (section.bytes() == 0) continue;
    std::vector<std::byte> bad(4, std::byte{0xff});  // not a number, in e4m3 too
    if (section.type == StateType::kI8) bad = {std::byte{0x80}};
    if (section.type == StateType::kBytes) bad = {std::byte{0xff}};
    SavedState damaged = good;
    std::copy(bad.begin(), bad.end(), damaged.bytes[i].begin());
    Result<std::unique_ptr<Sequence>> restored = TryRestore(*model_, damaged);
    ASSERT_FALSE(restored) << SectionName(section);
    EXPECT_EQ(restored.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(restored.error().message.find(SectionName(section)), std::string::npos);
    damaged = good;
    // The last bytes of packed rows are floats.
    if (section.type == StateType::kBytes) bad.assign(4, std::byte{0xff});
    std::copy(bad.rbegin(), bad.rend(), damaged.bytes[i].rbegin());
    EXPECT_FALSE(TryRestore(*model_, damaged)) << SectionName(section);
  }
  EXPECT_TRUE(TryRestore(*model_, good));
}

TEST_P(State, KeysThatNoStateHasAreRefused) {
  const StateKeeper& keeper = **KeeperOf(*model_);
  StateKey key = SaveState(*model_, *Make()).key;
  const auto refused = [&](size_t length, size_t rewindable) {
    key.length = length;
    key.rewindable = rewindable;
    const auto sections = keeper.Sections(key);
    return !sections && sections.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(size_t{1} << 32, 0));
  EXPECT_TRUE(refused(~size_t{0}, 0));
  EXPECT_TRUE(refused(3, 4));
  EXPECT_TRUE(refused(100, kind_ == Kind::kK3 ? 1 : 17));
  EXPECT_FALSE(refused(100, 0));
  key.options.max_tokens = 99;
  const auto restored =
      keeper.Restore(key, [](const StateSection&, std::span<std::byte>) -> Status { return {}; });
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, ErrorCode::kContextOverflow);
}

TEST_P(State, ErrorsOfSourceAndSinkArePassedOn) {
  const StateKeeper& keeper = **KeeperOf(*model_);
  const std::unique_ptr<Sequence> sequence = Make();
  const StateKey key = *keeper.KeyOf(*sequence);
  const Status saved = keeper.Save(
      *sequence, key,
      [](const StateSection&, std::span<const std::byte>) { return Fail(ErrorCode::kIo, "full"); });
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().message, "full");
  const auto restored = keeper.Restore(
      key, [](const StateSection&, std::span<std::byte>) { return Fail(ErrorCode::kIo, "torn"); });
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().message, "torn");
}

TEST_P(State, SequencesOfOthersAreRefused) {
  const RandomModel other(kind_, std::get<1>(GetParam()));
  const StateKeeper& keeper = **KeeperOf(*model_);
  SequenceOptions options;
  options.precision = std::get<1>(GetParam());
  const std::unique_ptr<Sequence> foreign = MakeSequence(*other, options);
  EXPECT_EQ(keeper.OwnBytes(*foreign), 0u);
  ASSERT_FALSE(keeper.KeyOf(*foreign));
  EXPECT_EQ(keeper.KeyOf(*foreign).error().code, ErrorCode::kInvalidArgument);
  // A key that is not that of the sequence.
  const std::unique_ptr<Sequence> own = Make();
  StateKey key = *keeper.KeyOf(*own);
  const auto nothing = [](const StateSection&, std::span<const std::byte>) -> Status { return {}; };
  EXPECT_FALSE(keeper.Save(*foreign, key, nothing));
  key.length = 1;
  EXPECT_FALSE(keeper.Save(*own, key, nothing));
}

INSTANTIATE_TEST_SUITE_P(Models, State,
                         testing::Combine(testing::Values(Kind::kK3, Kind::kDsv4),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)));

}  // namespace
}  // namespace mk::test
