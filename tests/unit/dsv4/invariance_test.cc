// What must not matter, does not, to the last bit: the rest of the batch, the number of workers,
// where a prompt is cut, what ran in between, whether a sequence is a copy, and whether it went
// back.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/reference/random_dsv4.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

// A model whose dimensions fit no vector, with every kind of layer. The window (21), the plain
// groups (8 and 16) and the picks of the indexer (7 rows, from position 32 on fewer than there
// are) are all passed within 70 tokens.
class Dsv4Invariance : public testing::TestWithParam<Precision> {
 protected:
  Dsv4Invariance() {
    reference::WriteRandomDsv4(directory_.Path("model.bin"), reference::AwkwardDsv4Config(), 5);
    model_ = Load(directory_.Path("model.bin"), GetParam());
    executor_ = MakeExecutor(2);
  }

  std::vector<int32_t> Tokens(size_t count, uint32_t seed) const {
    return RandomTokens(count, model_->info().vocab, seed);
  }
  std::unique_ptr<Sequence> Make() const {
    SequenceOptions options;
    options.precision = GetParam();
    return MakeSequence(*model_, options);
  }
  std::vector<float> Run(Sequence& sequence, std::span<const int32_t> tokens) const {
    return Feed(*model_, *executor_, sequence, tokens);
  }
  std::vector<float> RunAlone(std::span<const int32_t> tokens) const {
    return Run(*Make(), tokens);
  }
  std::vector<float> InSegments(std::span<const int32_t> tokens, size_t segment) const {
    return FeedInSegments(*model_, *executor_, *Make(), tokens, segment);
  }

  TempDirectory directory_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Executor> executor_;
};

TEST_P(Dsv4Invariance, PrefillEqualsDecodingTokenByToken) {
  const std::vector<int32_t> tokens = Tokens(300, 1);
  EXPECT_TRUE(SameBits(RunAlone(tokens), InSegments(tokens, 1)));
}

TEST_P(Dsv4Invariance, PromptsMayBeCutAnywhere) {
  const std::vector<int32_t> tokens = Tokens(150, 2);
  const std::vector<float> whole = RunAlone(tokens);
  for (const size_t segment : {3, 4, 5, 7, 20, 21, 22, 64, 127, 128, 129}) {
    EXPECT_TRUE(SameBits(InSegments(tokens, segment), whole)) << "segments of " << segment;
  }
  for (size_t cut = 1; cut < tokens.size(); ++cut) {
    const auto sequence = Make();
    std::vector<float> parts = Run(*sequence, std::span(tokens).first(cut));
    const std::vector<float> rest = Run(*sequence, std::span(tokens).subspan(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_TRUE(SameBits(parts, whole)) << "cut at " << cut;
  }
}

TEST_P(Dsv4Invariance, WorkersDoNotMatter) {
  const std::vector<int32_t> tokens = Tokens(150, 3);
  const auto one = MakeExecutor(1);
  const std::vector<float> alone = Feed(*model_, *one, *Make(), tokens);
  for (const size_t threads : {2, 3, 8}) {
    const auto many = MakeExecutor(threads);
    EXPECT_TRUE(SameBits(Feed(*model_, *many, *Make(), tokens), alone)) << threads;
    EXPECT_TRUE(SameBits(FeedInSegments(*model_, *many, *Make(), tokens, 1), alone)) << threads;
  }
}

// Eight sequences of different lengths decode together, one of them reads its prompt meanwhile.
TEST_P(Dsv4Invariance, ABatchOfEightEqualsEachAlone) {
  constexpr size_t kSequences = 8;
  constexpr size_t kSteps = 40;
  const size_t vocab = model_->info().vocab;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t s = 0; s < kSequences; ++s) {
    tokens.push_back(Tokens(5 + 13 * s + kSteps, static_cast<uint32_t>(s + 10)));
    alone.push_back(RunAlone(tokens[s]));
    sequences.push_back(Make());
    Run(*sequences[s], std::span(tokens[s]).first(5 + 13 * s));
  }
  const std::vector<int32_t> prompt = Tokens(4 * kSteps, 99);
  const std::vector<float> prompt_alone = RunAlone(prompt);
  const auto reader = Make();
  for (size_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<float>> rows(kSequences + 1);
    std::vector<ForwardItem> items;
    for (size_t s = 0; s < kSequences; ++s) {
      rows[s].resize(vocab);
      items.push_back({sequences[s].get(), std::span(tokens[s]).subspan(5 + 13 * s + step, 1),
                       LogitsWanted::kLast, rows[s]});
    }
    rows.back().resize(4 * vocab);
    items.insert(items.begin() + 3, {reader.get(), std::span(prompt).subspan(4 * step, 4),
                                     LogitsWanted::kAll, rows.back()});
    ASSERT_TRUE(model_->Forward(*executor_, items));
    for (size_t s = 0; s < kSequences; ++s) {
      const size_t at = (5 + 13 * s + step) * vocab;
      ASSERT_TRUE(SameBits(rows[s], std::span(alone[s]).subspan(at, vocab)))
          << "sequence " << s << " step " << step;
    }
    ASSERT_TRUE(
        SameBits(rows.back(), std::span(prompt_alone).subspan(4 * step * vocab, 4 * vocab)));
  }
}

TEST_P(Dsv4Invariance, CopiesGoTheirOwnWays) {
  const std::vector<int32_t> tokens = Tokens(160, 4);
  const std::vector<int32_t> other = Tokens(40, 5);
  const std::vector<float> whole = RunAlone(tokens);
  const size_t vocab = model_->info().vocab;
  for (const size_t at : {1, 3, 4, 7, 8, 20, 21, 31, 32, 63, 64, 100}) {
    const auto sequence = Make();
    Run(*sequence, std::span(tokens).first(at));
    auto copy = sequence->Clone();
    ASSERT_TRUE(copy) << copy.error().ToString();
    EXPECT_EQ((*copy)->length(), at);
    std::vector<int32_t> forked(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(at));
    forked.insert(forked.end(), other.begin(), other.end());
    const std::vector<float> fork_alone = RunAlone(forked);
    // In turns, so that one writes where the other has read.
    std::vector<float> ours, theirs;
    for (size_t i = 0; i < other.size(); ++i) {
      const std::vector<float> a = Run(*sequence, std::span(tokens).subspan(at + i, 1));
      const std::vector<float> b = Run(**copy, std::span(other).subspan(i, 1));
      ours.insert(ours.end(), a.begin(), a.end());
      theirs.insert(theirs.end(), b.begin(), b.end());
    }
    EXPECT_TRUE(SameBits(ours, std::span(whole).subspan(at * vocab, ours.size()))) << at;
    EXPECT_TRUE(SameBits(theirs, std::span(fork_alone).subspan(at * vocab))) << at;
  }
}

TEST_P(Dsv4Invariance, GoingBackLeavesNoTrace) {
  const std::vector<int32_t> tokens = Tokens(150, 6);
  const std::vector<int32_t> other = Tokens(40, 7);
  const size_t vocab = model_->info().vocab;
  for (const size_t at : {1, 3, 4, 8, 20, 22, 32, 33, 64, 127, 128, 150}) {
    for (const size_t back : {1, 2, 3, 4, 7, 8, 16}) {
      if (back > at) continue;
      const auto sequence = Make();
      Run(*sequence, std::span(tokens).first(at));
      ASSERT_GE(sequence->rewindable(), back);
      ASSERT_TRUE(sequence->Rewind(at - back));
      EXPECT_EQ(sequence->length(), at - back);
      std::vector<int32_t> taken(tokens.begin(),
                                 tokens.begin() + static_cast<ptrdiff_t>(at - back));
      taken.insert(taken.end(), other.begin(), other.end());
      const std::vector<float> fresh = RunAlone(taken);
      EXPECT_TRUE(SameBits(Run(*sequence, other), std::span(fresh).subspan((at - back) * vocab)))
          << "from " << at << " by " << back;
    }
  }
}

// What was drafted and rejected again and again, with a copy in between that still stands where
// the sequence went back from.
TEST_P(Dsv4Invariance, GoingBackOftenAndBesideACopy) {
  const std::vector<int32_t> tokens = Tokens(120, 8);
  const std::vector<int32_t> drafts = Tokens(120, 9);
  const std::vector<float> whole = RunAlone(tokens);
  const size_t vocab = model_->info().vocab;
  const auto sequence = Make();
  std::vector<float> rows;
  for (size_t t = 0; t < tokens.size(); ++t) {
    const size_t drafted = t % 6;
    Run(*sequence, std::span(drafts).first(drafted + 1));
    std::unique_ptr<Sequence> copy;
    if (t % 5 == 0) copy = std::move(*sequence->Clone());
    ASSERT_TRUE(sequence->Rewind(t));
    const std::vector<float> row = Run(*sequence, std::span(tokens).subspan(t, 1));
    rows.insert(rows.end(), row.begin(), row.end());
    if (copy == nullptr) continue;
    std::vector<int32_t> path(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(t));
    path.insert(path.end(), drafts.begin(), drafts.begin() + static_cast<ptrdiff_t>(drafted + 1));
    path.push_back(7);
    const std::vector<float> expected = RunAlone(path);
    ASSERT_TRUE(SameBits(Run(*copy, {{7}}), std::span(expected).last(vocab))) << t;
  }
  EXPECT_TRUE(SameBits(rows, whole));
}

TEST_P(Dsv4Invariance, GoingBackTooFarIsRefused) {
  const std::vector<int32_t> tokens = Tokens(100, 10);
  const auto sequence = Make();
  EXPECT_EQ(sequence->rewindable(), 0u);
  Run(*sequence, std::span(tokens).first(5));
  EXPECT_EQ(sequence->rewindable(), 5u);
  Run(*sequence, std::span(tokens).subspan(5, 75));
  EXPECT_EQ(sequence->rewindable(), 16u);
  for (const size_t length : {0, 63, 81, 1000}) {
    const Status went = sequence->Rewind(length);
    ASSERT_FALSE(went);
    EXPECT_EQ(went.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(sequence->length(), 80u);
  }
  ASSERT_TRUE(sequence->Rewind(80));
  ASSERT_TRUE(sequence->Rewind(70));
  EXPECT_EQ(sequence->rewindable(), 6u);  // the rings have seen 80 tokens
  EXPECT_FALSE(sequence->Rewind(63));
  Run(*sequence, std::span(tokens).subspan(70, 4));
  EXPECT_EQ(sequence->rewindable(), 10u);
  Run(*sequence, std::span(tokens).subspan(74, 20));
  EXPECT_EQ(sequence->rewindable(), 16u);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Dsv4Invariance,
                         testing::Values(Precision::kExact, Precision::kBf16, Precision::kQ8),
                         [](const auto& test) { return std::string(PrecisionName(test.param)); });

}  // namespace
}  // namespace mk::test
