// Guesses by shadows are verified: answers, logits and states of the bundled models are those of
// plain runs, greedy and sampled, whatever the shadows say; and with shadows as stand-ins nothing
// is waited for, which is told.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/generate/generate_all.h"
#include "engine/shadow/shadow_builder.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

using Ids = std::vector<int32_t>;

struct Answer {
  Ids ids;
  std::vector<float> logits;
  SpeculationStats stats;
};

class ShadowSpeculation : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::filesystem::copy_file(std::string(MK_SOURCE_DIR) + "/models/" + GetParam(), path());
    ShadowOptions build;
    build.sample = 20'000;
    build.threads = 2;
    const auto built = BuildShadows(path(), build);
    ASSERT_TRUE(built) << built.error().ToString();
    executor_ = MakeExecutor(2);
  }

  std::string path() const { return directory_.Path("model.bin"); }

  // With as little memory for experts as is possible.
  std::shared_ptr<const Model> Streamed(Precision precision, bool shadows) const {
    LoadOptions options;
    options.precision = precision;
    options.stream.emplace();
    options.stream_room = 1;
    if (shadows) options.stream->shadows = path() + ".shadows";
    auto model = LoadModel(path(), options);
    EXPECT_TRUE(model) << model.error().ToString();
    return *model;
  }

  Answer Run(const Model& model, Precision precision, float temperature, uint64_t seed,
             uint32_t guesses) {
    SequenceOptions timeline;
    timeline.precision = precision;
    const std::unique_ptr<Sequence> sequence = MakeSequence(model, timeline);
    GenerationOptions options;
    options.max_new = 40;
    options.context_limit = 1 << 12;
    options.sampling.temperature = temperature;
    options.sampling.seed = seed;
    options.speculation.shadow = guesses;
    auto made = Generation::Create(*sequence, model.info().vocab,
                                   RandomTokens(5 + seed % 70, model.info().vocab, 9), options,
                                   nullptr, nullptr);
    EXPECT_TRUE(made) << made.error().ToString();
    EXPECT_TRUE(GenerateAll(model, *executor_, **made));
    Answer answer;
    answer.ids.assign((*made)->emitted().begin(), (*made)->emitted().end());
    if (auto last = (*made)->NormaliseItem()) {
      EXPECT_TRUE(model.Forward(*executor_, {&*last, 1}));
      (*made)->AcceptNormalised();
    }
    answer.logits.assign((*made)->logits().begin(), (*made)->logits().end());
    if (const SpeculationStats* stats = (*made)->speculation()) answer.stats = *stats;
    return answer;
  }

  TempDirectory directory_;
  std::unique_ptr<Executor> executor_;
};

TEST_P(ShadowSpeculation, AnswersAreThoseOfPlainRuns) {
  for (const Precision precision : {Precision::kExact, Precision::kQ8}) {
    const auto plain = test::Load(path(), precision);
    const auto streamed = Streamed(precision, true);
    ASSERT_GT(streamed->stream_stats()->shadow_bytes, 0u);
    uint64_t accepted = 0;
    uint64_t rejected = 0;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const float temperature = seed % 2 == 0 ? 0.0f : 0.8f;
      const Answer expected = Run(*plain, precision, temperature, seed, 0);
      const Answer guessed =
          Run(*streamed, precision, temperature, seed, static_cast<uint32_t>(1 + seed));
      EXPECT_EQ(guessed.ids, expected.ids) << seed;
      EXPECT_TRUE(SameBits(guessed.logits, expected.logits)) << seed;
      accepted += guessed.stats.accepted;
      rejected += guessed.stats.rejected();
    }
    // The test saw both.
    EXPECT_GT(accepted, 0u);
    EXPECT_GT(rejected, 0u);
    EXPECT_GT(streamed->stream_stats()->shadowed, 0u);
  }
}

TEST_P(ShadowSpeculation, StandInsDoNotWaitAndAreCounted) {
  const auto streamed = Streamed(Precision::kExact, true);
  const std::unique_ptr<Sequence> sequence = MakeSequence(*streamed);
  std::vector<float> logits(streamed->info().vocab);
  const Ids tokens = RandomTokens(20, streamed->info().vocab, 4);
  ForwardItem item{sequence.get(), tokens, LogitsWanted::kLast, logits};
  item.experts = ExpertAccess::kShadow;
  ASSERT_TRUE(streamed->Forward(*executor_, {&item, 1}));
  EXPECT_GT(item.shadowed, 0u);
  EXPECT_EQ(streamed->stream_stats()->stall_ns, 0u);
  for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
}

TEST_P(ShadowSpeculation, ShadowsOfAnotherModelAreNotUsed) {
  const std::string other =
      std::string(GetParam()) == "story-k3.bin" ? "story-dsv4.bin" : "story-k3.bin";
  std::filesystem::copy_file(std::string(MK_SOURCE_DIR) + "/models/" + other, path(),
                             std::filesystem::copy_options::overwrite_existing);
  const auto streamed = Streamed(Precision::kExact, true);
  EXPECT_EQ(streamed->stream_stats()->shadow_bytes, 0u);
  EXPECT_FALSE(streamed->stream_stats()->shadow_error.empty());
}

INSTANTIATE_TEST_SUITE_P(All, ShadowSpeculation, testing::Values("story-k3.bin", "story-dsv4.bin"),
                         [](const auto& one) { return std::string(one.param).substr(6, 2); });

}  // namespace
}  // namespace mk::test
