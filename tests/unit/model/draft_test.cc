// Drafts: tokens that were guessed in one pass and taken back in part leave no trace. Whatever is
// done next gives the bits of a sequence that was fed the others one by one.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/model/state.h"
#include "tests/unit/dsv4/golden_model.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/saved_state.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

// A recorded model, or a random one whose dimensions fit no vector.
class AnyModel {
 public:
  AnyModel(const std::string& name, Precision precision) {
    if (name == "awkward_k3" || name == "awkward_dsv4") {
      random_ =
          std::make_unique<RandomModel>(name == "awkward_k3" ? Kind::kK3 : Kind::kDsv4, precision);
      return;
    }
    if (name[0] == 'k') {
      loaded_ = Load(std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/model.bin", precision);
      return;
    }
    const GoldenModel golden(name);
    loaded_ = Load(golden.path(), precision);
  }
  const Model& operator*() const { return random_ ? **random_ : *loaded_; }

 private:
  std::unique_ptr<RandomModel> random_;
  std::shared_ptr<const Model> loaded_;
};

class Draft : public testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  Draft() : any_(std::get<0>(GetParam()), std::get<1>(GetParam())), model_(*any_) {}

  bool k3() const { return model_.info().architecture == "k3"; }
  size_t vocab() const { return model_.info().vocab; }
  SequenceOptions Options(size_t mode) const {
    SequenceOptions options;
    options.precision = precision_;
    if (mode % 3 == 1) options.chunked_prefill = false;
    if (mode % 3 == 2) options.expanded_kv = k3();
    return options;
  }
  std::unique_ptr<Sequence> Make(size_t mode = 0) const {
    return MakeSequence(model_, Options(mode));
  }
  std::vector<int32_t> Tokens(size_t count, uint32_t seed) const {
    return RandomTokens(count, vocab(), seed);
  }
  std::vector<float> FeedDraft(Sequence& sequence, std::span<const int32_t> tokens) {
    std::vector<float> logits(tokens.size() * vocab());
    ForwardItem item{&sequence, tokens, LogitsWanted::kAll, logits, true};
    const Status done = model_.Forward(*executor_, {&item, 1});
    EXPECT_TRUE(done) << done.error().ToString();
    return logits;
  }
  std::vector<float> OneByOne(Sequence& sequence, std::span<const int32_t> tokens) {
    return FeedInSegments(model_, *executor_, sequence, tokens, 1);
  }
  SavedState Saved(const Sequence& sequence) const { return SaveState(model_, sequence); }
  std::unique_ptr<Sequence> Clone(const Sequence& sequence) const {
    Result<std::unique_ptr<Sequence>> copy = sequence.Clone();
    EXPECT_TRUE(copy);
    return std::move(*copy);
  }

  const AnyModel any_;
  const Model& model_;
  Precision precision_ = std::get<1>(GetParam());  // of what is made next
  std::unique_ptr<Executor> executor_ = MakeExecutor(2);
};

// A sequence that drafts, and one that never does and is fed what the first one keeps.
struct Pair {
  std::unique_ptr<Sequence> drafter;
  std::unique_ptr<Sequence> plain;
  // Of the next pass.
  std::vector<int32_t> tokens;
  size_t kept = 0;
  bool draft = false;
  std::vector<float> logits;
};

// Drafts in batches with other items: other drafts, single tokens, pieces of prompts, in any mode
// and one more precision. Copies are made at any time and go their own ways, in passes of any
// number of workers.
class DraftRounds : public Draft {
 protected:
  void SetUp() override {
    for (size_t mode = 0; mode < 3; ++mode) Start(mode);
    precision_ = static_cast<Precision>((static_cast<size_t>(precision_) + 1) % kPrecisions);
    ASSERT_TRUE(model_.Prepare(precision_, LoadOptions{}));
    Start(0);
  }
  size_t Below(size_t limit) { return random_() % limit; }

  void Start(size_t mode) {
    Pair pair{Make(mode), Make(mode), {}, 0, false, {}};
    const std::vector<int32_t> prompt = Draw(1 + Below(140));
    Feed(model_, *executor_, *pair.drafter, prompt);
    Feed(model_, *executor_, *pair.plain, prompt);
    pairs_.push_back(std::move(pair));
  }
  std::vector<int32_t> Draw(size_t count) {
    return Tokens(count, static_cast<uint32_t>(random_()));
  }
  void Plan(Pair& pair) {
    const size_t kind = Below(8);
    const size_t longest = kind == 0 ? kMaxDraftTokens : 24;
    pair.draft = kind < 6;
    pair.tokens = Draw(pair.draft ? 1 + Below(longest) : (kind == 6 ? 1 : 1 + Below(70)));
    pair.kept = pair.tokens.size();
    // All and none are as frequent as some.
    if (pair.draft && Below(3) > 0) pair.kept = Below(2) == 0 ? 0 : Below(pair.kept + 1);
    pair.logits.assign(pair.tokens.size() * vocab(), 0);
  }
  void Pass() {
    std::vector<ForwardItem> items;
    for (Pair& pair : pairs_) {
      items.push_back(
          {pair.drafter.get(), pair.tokens, LogitsWanted::kAll, pair.logits, pair.draft});
    }
    const Status done = model_.Forward(*executors_[Below(3)], items);
    ASSERT_TRUE(done) << done.error().ToString();
  }
  // Keeps what is to be kept, on both sides.
  void Settle(Pair& pair) {
    Sequence& drafter = *pair.drafter;
    if (pair.draft) {
      const size_t before = drafter.length() - pair.tokens.size();
      ASSERT_GE(drafter.rewindable(), pair.tokens.size());
      if (Below(4) == 0) {  // in two steps
        const size_t between = pair.kept + Below(pair.tokens.size() - pair.kept + 1);
        ASSERT_TRUE(drafter.Rewind(before + between));
      }
      ASSERT_TRUE(drafter.Rewind(before + pair.kept));
    }
    const std::span<const int32_t> kept = std::span(pair.tokens).first(pair.kept);
    const std::vector<float> expected =
        pair.draft ? OneByOne(*pair.plain, kept) : Feed(model_, *executor_, *pair.plain, kept);
    ASSERT_EQ(drafter.length(), pair.plain->length());
    ASSERT_TRUE(SameBits(std::span(pair.logits).first(expected.size()), expected));
    if (Below(3) == 0) {
      ASSERT_TRUE(Saved(drafter) == Saved(*pair.plain));
    }
    if (Below(6) == 0) {
      ASSERT_TRUE(drafter.EndDraft());
    }
    if (Below(6) == 0) {
      ASSERT_TRUE(Saved(drafter) == Saved(*pair.plain));
    }
  }
  void Copy() {
    const Pair& pair = pairs_[Below(pairs_.size())];
    Pair copy{Clone(*pair.drafter), Clone(*pair.plain), {}, 0, false, {}};
    EXPECT_EQ(copy.drafter->rewindable(), pair.drafter->rewindable());
    if (Below(2) == 0) {
      ASSERT_TRUE(copy.drafter->EndDraft());
    }
    pairs_.push_back(std::move(copy));
  }

  // --gtest_shuffle --gtest_random_seed=N makes other rounds.
  std::mt19937 random_{static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed())};
  std::vector<Pair> pairs_;
  std::unique_ptr<Executor> executors_[3] = {MakeExecutor(1), MakeExecutor(2), MakeExecutor(4)};
};

TEST_P(DraftRounds, WhatIsKeptIsAsIfItHadComeOneByOne) {
  for (size_t round = 0; round < 40; ++round) {
    for (Pair& pair : pairs_) Plan(pair);
    Pass();
    // Copies of an open draft, which are then settled otherwise.
    std::vector<Pair> others;
    for (const Pair& pair : pairs_) {
      if (!pair.draft || Below(8) > 0) continue;
      Pair other{Clone(*pair.drafter), Clone(*pair.plain), pair.tokens, 0, true, pair.logits};
      other.kept = Below(pair.tokens.size() + 1);
      others.push_back(std::move(other));
    }
    for (Pair& pair : pairs_) Settle(pair);
    for (Pair& other : others) {
      Settle(other);
      pairs_.push_back(std::move(other));
    }
    if (HasFatalFailure()) FAIL() << "in round " << round;
    if (Below(4) == 0) Copy();
    while (pairs_.size() > 6) {
      pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(Below(pairs_.size())));
    }
  }
  for (Pair& pair : pairs_) {
    EXPECT_TRUE(Saved(*pair.drafter) == Saved(*pair.plain));
    EXPECT_TRUE(pair.drafter->EndDraft());
    EXPECT_EQ(pair.drafter->rewindable(), pair.plain->rewindable());
    EXPECT_EQ(pair.drafter->state_bytes(), pair.plain->state_bytes());
  }
}

// Every length of a draft and every number of tokens kept, across the border of a page and of a
// block, with what the pass says of the guesses that are wrong.
TEST_P(Draft, EveryCutOfADraftIsAStateOfItsOwn) {
  for (const size_t length : {1, 4, 24, 65}) {
    const std::vector<int32_t> prompt = Tokens(128 - length / 2, 3);
    const std::vector<int32_t> guesses = Tokens(length, 4);
    const std::vector<int32_t> next = Tokens(3, 5);
    const std::unique_ptr<Sequence> plain = Make();
    Feed(model_, *executor_, *plain, prompt);
    const std::unique_ptr<Sequence> drafter = Make();
    Feed(model_, *executor_, *drafter, prompt);
    const std::vector<float> logits = FeedDraft(*drafter, guesses);
    std::vector<std::unique_ptr<Sequence>> cuts;
    for (size_t kept = 0; kept <= length; ++kept) cuts.push_back(Clone(*drafter));
    for (size_t kept = 0; kept <= length; ++kept) {
      ASSERT_TRUE(cuts[kept]->Rewind(prompt.size() + kept));
      ASSERT_TRUE(Saved(*cuts[kept]) == Saved(*plain)) << kept << " of " << length;
      const std::unique_ptr<Sequence> expected = Clone(*plain);
      ASSERT_TRUE(SameBits(FeedDraft(*cuts[kept], next), OneByOne(*expected, next)))
          << kept << " of " << length;
      if (kept == length) break;
      ASSERT_TRUE(SameBits(std::span(logits).subspan(kept * vocab(), vocab()),
                           OneByOne(*plain, std::span(guesses).subspan(kept, 1))))
          << kept << " of " << length;
    }
  }
}

// A draft at a multiple of 64 that is as long as a block is read step by step all the same.
TEST_P(Draft, ADraftIsNotReadInBlocks) {
  const std::vector<int32_t> prompt = Tokens(64, 6), guesses = Tokens(64, 7);
  const std::unique_ptr<Sequence> drafter = Make(), plain = Make();
  Feed(model_, *executor_, *drafter, prompt);
  Feed(model_, *executor_, *plain, prompt);
  EXPECT_TRUE(SameBits(FeedDraft(*drafter, guesses), OneByOne(*plain, guesses)));
  EXPECT_TRUE(Saved(*drafter) == Saved(*plain));
}

TEST_P(Draft, AnEmptySequenceMayDraft) {
  const std::vector<int32_t> guesses = Tokens(9, 8);
  const std::unique_ptr<Sequence> drafter = Make(), plain = Make();
  FeedDraft(*drafter, guesses);
  ASSERT_TRUE(drafter->Rewind(0));
  EXPECT_TRUE(Saved(*drafter) == Saved(*plain));
  EXPECT_TRUE(SameBits(FeedDraft(*drafter, guesses), OneByOne(*plain, guesses)));
}

TEST_P(Draft, ADraftIsOpenUntilTheNextPass) {
  const std::unique_ptr<Sequence> sequence = Make();
  Feed(model_, *executor_, *sequence, Tokens(40, 9));
  const size_t before = sequence->rewindable();
  EXPECT_EQ(before, k3() ? 0u : 16u);
  FeedDraft(*sequence, Tokens(20, 10));
  EXPECT_EQ(sequence->rewindable(), before + 20);
  const SavedState saved = Saved(*sequence);
  for (const size_t length : {size_t{61}, 39 - before, ~size_t{0}}) {
    const Status went = sequence->Rewind(length);
    ASSERT_FALSE(went) << length;
    EXPECT_EQ(went.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(went.error().message.find("cannot go back to " + std::to_string(length)),
              std::string::npos);
  }
  EXPECT_TRUE(Saved(*sequence) == saved);
  EXPECT_TRUE(sequence->Rewind(60));
  EXPECT_TRUE(sequence->Rewind(50));
  EXPECT_FALSE(sequence->Rewind(51));
  EXPECT_EQ(sequence->rewindable(), before + 10);
  const std::unique_ptr<Sequence> copy = Clone(*sequence);
  EXPECT_TRUE(copy->Rewind(40));
  Feed(model_, *executor_, *sequence, Tokens(1, 11));
  EXPECT_EQ(sequence->rewindable(), before);
  EXPECT_FALSE(sequence->Rewind(50 - before));
  // The copy has not gone on.
  FeedDraft(*copy, Tokens(2, 12));
  EXPECT_TRUE(copy->EndDraft());
  EXPECT_EQ(copy->rewindable(), before);
}

// Behind the draft a sequence goes back as far as it could before, if it could.
TEST_P(Draft, ARewindBehindTheDraftForgetsIt) {
  if (k3()) GTEST_SKIP() << "K3 states only go forward";
  const std::vector<int32_t> prompt = Tokens(90, 13);
  const std::unique_ptr<Sequence> sequence = Make();
  const std::unique_ptr<Sequence> plain = Make();
  for (Sequence* each : {sequence.get(), plain.get()}) {
    Feed(model_, *executor_, *each, prompt);
    ASSERT_TRUE(each->Rewind(85));
  }
  FeedDraft(*sequence, Tokens(30, 14));
  EXPECT_EQ(sequence->rewindable(), 30u + 11u);
  for (Sequence* each : {sequence.get(), plain.get()}) ASSERT_TRUE(each->Rewind(76));
  EXPECT_TRUE(Saved(*sequence) == Saved(*plain));
  EXPECT_EQ(sequence->rewindable(), 2u);
  const std::vector<int32_t> next = Tokens(20, 15);
  EXPECT_TRUE(SameBits(FeedDraft(*sequence, next), OneByOne(*plain, next)));
}

TEST_P(Draft, TooLongADraftIsRefused) {
  const std::unique_ptr<Sequence> sequence = Make();
  Feed(model_, *executor_, *sequence, Tokens(10, 16));
  const std::vector<int32_t> guesses = Tokens(kMaxDraftTokens + 1, 17);
  ForwardItem item{sequence.get(), guesses, LogitsWanted::kNone, {}, true};
  const Status done = model_.Forward(*executor_, {&item, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(done.error().message.find("66 tokens are too many for a draft"), std::string::npos);
  EXPECT_EQ(sequence->length(), 10u);
}

TEST_P(Draft, ItsMemoryIsCountedAndGivenBack) {
  const auto pages = [&](const Sequence& sequence) {
    size_t bytes = 0;
    for (const StatePage& page : (*KeeperOf(model_))->Pages(sequence)) bytes += page.bytes;
    return bytes;
  };
  EXPECT_EQ(model_.draft_bytes(0), 0u);
  const std::unique_ptr<Sequence> sequence = Make();
  Feed(model_, *executor_, *sequence, Tokens(100, 18));
  const size_t without = sequence->state_bytes();
  for (const size_t length : {5, 8, 17, 65, 3}) {
    FeedDraft(*sequence, Tokens(length, 19));
    const size_t longest = std::max<size_t>(length, length == 3 ? 65 : 0);
    EXPECT_LE(sequence->state_bytes(),
              model_.state_bytes(sequence->length()) + model_.draft_bytes(longest));
    EXPECT_EQ(pages(*sequence), sequence->state_bytes());
    ASSERT_TRUE(sequence->Rewind(100));
    EXPECT_EQ(sequence->state_bytes(), without + model_.draft_bytes(longest));
  }
  // A copy has none of its own to give back, nor takes any with it when nothing is open.
  EXPECT_EQ(Clone(*sequence)->state_bytes(), without);
  ASSERT_TRUE(sequence->EndDraft());
  EXPECT_EQ(sequence->state_bytes(), without);
  EXPECT_EQ(pages(*sequence), sequence->state_bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Models, Draft,
    testing::Combine(testing::Values("k3b", "k3c", "awkward_k3", "d2", "awkward_dsv4"),
                     testing::Values(Precision::kExact, Precision::kBf16, Precision::kQ8)));
INSTANTIATE_TEST_SUITE_P(Models, DraftRounds,
                         testing::Combine(testing::Values("k3b", "awkward_k3", "awkward_dsv4"),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)));

// A failed pass leaves a sequence of which nothing can be had any more.
TEST(BrokenDraft, CannotBeTakenBack) {
  ScratchModel copy(std::string(MK_TEST_DATA) + "/golden/k3/k3b/model.bin");
  copy.PatchFloat("embed_tokens.weight", 0, std::numeric_limits<float>::quiet_NaN());
  const std::shared_ptr<const Model> model = Load(copy.path());
  const std::unique_ptr<Executor> executor = MakeExecutor(1);
  const std::unique_ptr<Sequence> sequence = MakeSequence(*model);
  Feed(*model, *executor, *sequence, std::vector<int32_t>{1, 2, 3});
  const std::vector<int32_t> guesses = {4, 5};
  ForwardItem item{sequence.get(), guesses, LogitsWanted::kNone, {}, true};
  ASSERT_TRUE(model->Forward(*executor, {&item, 1}));
  const std::vector<int32_t> bad = {6, 0};
  item.tokens = bad;
  const Status failed = model->Forward(*executor, {&item, 1});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kNumeric);
  for (const size_t length : {3, 5, 7}) {
    const Status went = sequence->Rewind(length);
    ASSERT_FALSE(went) << length;
    EXPECT_EQ(went.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(went.error().message.find("left unusable by an earlier error"), std::string::npos);
  }
  EXPECT_TRUE(sequence->EndDraft());  // gives back memory, no more
  EXPECT_FALSE(sequence->Clone());
}

}  // namespace
}  // namespace mk::test
