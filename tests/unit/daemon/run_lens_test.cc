// What a run shows inside of a pass is shown of the positions that it keeps, and of no others.

#include "daemon/run_lens.h"

#include <gtest/gtest.h>

#include "daemon/expert_counter.h"
#include "tests/unit/model/random_model.h"

namespace mk::daemon {
namespace {

using test::Kind;

protocol::RunArgs Args(const std::string& lens) {
  protocol::RunArgs args;
  args.lens = lens;
  args.lens_top = 2;
  return args;
}

class RunLensTest : public testing::TestWithParam<Kind> {
 protected:
  RunLensTest() : model_(GetParam()), executor_(test::MakeExecutor(2)) {}

  std::shared_ptr<const Model> model() const { return {std::shared_ptr<void>(), &*model_}; }

  // Positions that are shown of a pass over tokens 5, 6, 7, 8 from position 10 on, when those
  // before `end` are kept.
  std::vector<protocol::LensChunk> ShownOf(RunLens& lens, const RunLens::Pass& pass, size_t end) {
    SequenceOptions options;
    const auto sequence = test::MakeSequence(*model_, options);
    const std::vector<int32_t> before(pass.first, 1);
    test::Feed(*model_, *executor_, *sequence, before);
    const std::vector<int32_t> tokens = {5, 6, 7, 8};
    lens.Begin(pass);
    test::Feed(*model_, *executor_, *sequence, tokens, &lens);
    std::vector<protocol::Body> messages;
    const auto token_at = [&](size_t position) -> std::optional<int32_t> {
      if (position < pass.first || position >= end + 1) return std::nullopt;
      return tokens[std::min(position - pass.first, tokens.size() - 1)];
    };
    const Status done = lens.Examine(*executor_, end, 10, token_at, messages);
    EXPECT_TRUE(done) << done.error().ToString();
    std::vector<protocol::LensChunk> chunks;
    for (const auto& message : messages) chunks.push_back(std::get<protocol::LensChunk>(message));
    return chunks;
  }

  const test::RandomModel model_;
  std::unique_ptr<Executor> executor_;
};

TEST_P(RunLensTest, DraftsThatAreNotKeptAreNotShown) {
  for (size_t end = 10; end <= 14; ++end) {
    RunLens lens(model(), nullptr, Precision::kExact, Args("answer"));
    const auto chunks = ShownOf(lens, {10, 4, false, false}, end);
    ASSERT_EQ(chunks.size(), end - 10);
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(chunks[i].position, 10 + i);
      EXPECT_EQ(chunks[i].index, i);
      EXPECT_EQ(chunks[i].id, static_cast<int32_t>(5 + i));
      EXPECT_EQ(chunks[i].layers.size(), model_->info().layers);
    }
  }
}

TEST_P(RunLensTest, OfAPromptItsEndOrAll) {
  RunLens last(model(), nullptr, Precision::kExact, Args("last"));
  EXPECT_TRUE(ShownOf(last, {2, 4, true, false}, 6).empty());
  const auto end = ShownOf(last, {6, 4, true, true}, 10);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(end[0].position, 9u);
  EXPECT_FALSE(end[0].index);
  EXPECT_FALSE(last.wanted());
  EXPECT_TRUE(ShownOf(last, {10, 4, false, false}, 14).empty());
  RunLens all(model(), nullptr, Precision::kExact, Args("all"));
  EXPECT_EQ(ShownOf(all, {2, 4, true, false}, 6).size(), 4u);
}

TEST_P(RunLensTest, WhatItHoldsIsBounded) {
  const ModelInfo& info = model_->info();
  protocol::RunArgs none;
  EXPECT_EQ(RunLens::Bytes(info, none), 0u);
  const uint64_t one = RunLens::Bytes(info, Args("last"));
  const uint64_t all = RunLens::Bytes(info, Args("all"));
  EXPECT_GE(one, info.layers * info.streams * info.hidden * sizeof(float));
  EXPECT_GE(all, kPrefillBlock * info.layers * info.streams * info.hidden * sizeof(float));
  protocol::RunArgs few = Args("last");
  few.lens_layers = {0};
  EXPECT_LT(RunLens::Bytes(info, few), one);
  few.lens_layers = {static_cast<uint32_t>(info.layers)};
  EXPECT_FALSE(RunLens::Check(info, few));
}

TEST_P(RunLensTest, ExpertsAreCountedOfWhatIsKept) {
  const auto all = std::make_shared<ExpertCounter>(model_->info());
  RunExpertCounter counter(model_->info(), all);
  const std::vector<int32_t> experts = {1, 2};
  const std::vector<float> weights = {0.5f, 0.5f};
  counter.Begin();
  for (size_t position = 10; position < 14; ++position) {
    counter.OnRouter(0, position, 1, experts, weights);
  }
  counter.Keep(12);
  counter.Begin();
  counter.OnRouter(0, 12, 1, experts, weights);
  counter.Begin();  // dropped
  counter.Keep(99);
  const auto tally = counter.Tally();
  ASSERT_EQ(tally.counts.size(), 1u);
  EXPECT_EQ(tally.counts[0].experts, experts);
  EXPECT_EQ(all->Tally(true), tally);
  EXPECT_TRUE(all->Tally().counts.empty());
  EXPECT_EQ(tally.counts[0].counts, (std::vector<uint64_t>{2, 2}));
}

INSTANTIATE_TEST_SUITE_P(Models, RunLensTest, testing::Values(Kind::kK3, Kind::kDsv4));

}  // namespace
}  // namespace mk::daemon
