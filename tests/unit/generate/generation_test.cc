#include "engine/generate/generation.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "engine/generate/generate_all.h"
#include "engine/model/executor.h"
#include "engine/tokenizer/byte_tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "tests/unit/generate/toy_model.h"

namespace mk {
namespace {

class GenerationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Executor>> made = Executor::Create(1);
    ASSERT_TRUE(made);
    executor_ = std::move(*made);
    Result<std::shared_ptr<const Tokenizer>> tokenizer = MakeByteTokenizer(kVocab);
    ASSERT_TRUE(tokenizer);
    tokenizer_ = *tokenizer;
  }

  static GenerationOptions Options(size_t max_new) {
    GenerationOptions options;
    options.max_new = max_new;
    options.context_limit = 4096;
    return options;
  }

  std::unique_ptr<Generation> Make(Sequence& sequence, Ids prompt, GenerationOptions options) {
    Result<std::unique_ptr<Generation>> made = Generation::Create(
        sequence, kVocab, std::move(prompt), std::move(options), tokenizer_, nullptr);
    EXPECT_TRUE(made) << made.error().ToString();
    return std::move(*made);
  }

  // A scripted continuation of a prompt of one token.
  void Script(const std::string& text) {
    model_.script_start = 1;
    model_.script.clear();
    for (const char c : text) model_.script.push_back(static_cast<uint8_t>(c));
  }

  std::string Run(Generation& generation) {
    std::string text;
    const Status status = GenerateAll(model_, *executor_, generation, [&](const auto& step) {
      const std::string more = TextOf(step);
      EXPECT_TRUE(DecodeUtf8(more));
      text += more;
      return true;
    });
    EXPECT_TRUE(status) << status.error().ToString();
    return text;
  }

  static Ids Long(size_t n) {
    Ids ids;
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(i * 7 % 256));
    return ids;
  }

  ToyModel model_;
  ToySequence sequence_;
  std::unique_ptr<Executor> executor_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_F(GenerationTest, EmittedTokensAreTheArgmaxOfEverythingBefore) {
  auto generation = Make(sequence_, Long(10), Options(20));
  Run(*generation);
  EXPECT_EQ(generation->finish_reason(), FinishReason::kLength);
  ASSERT_EQ(generation->emitted().size(), 20u);
  Ids so_far = Long(10);
  std::vector<float> logits(kVocab);
  for (const int32_t id : generation->emitted()) {
    model_.Fill(so_far, logits);
    EXPECT_EQ(id, *Argmax(logits));
    so_far.push_back(id);
  }
  EXPECT_EQ(sequence_.tokens, so_far);  // all of them ingested
  model_.Fill(so_far, logits);
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), generation->logits().begin()));
}

TEST_F(GenerationTest, PromptPiecesEndAtMultiplesOfTheBlock) {
  for (const size_t start : {0, 1, 63, 64, 100}) {
    for (const size_t max : {64, 65, 127, 128, 500}) {
      ToySequence sequence;
      sequence.tokens = Long(start);
      const Ids prompt = Long(333);
      auto generation = Make(sequence, prompt, Options(1));
      size_t pieces = 0;
      while (generation->prefilling()) {
        ForwardItem item = generation->NextItem(max);
        ASSERT_FALSE(item.tokens.empty());
        ASSERT_LE(item.tokens.size(), max);
        ASSERT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
        const bool last = sequence.length() == start + prompt.size();
        EXPECT_TRUE(last || sequence.length() % kPrefillBlock == 0);
        EXPECT_EQ(item.wanted, last ? LogitsWanted::kLast : LogitsWanted::kNone);
        const Result<GenerationStep> step = generation->Accept();
        ASSERT_TRUE(step);
        EXPECT_EQ(step->tokens.size(), last ? 1u : 0u);
        EXPECT_EQ(step->rows, last ? 1u : 0u);
        ++pieces;
      }
      EXPECT_LE(pieces, 333 / (max - 63) + 2);
      EXPECT_EQ(Ids(sequence.tokens.begin() + static_cast<ptrdiff_t>(start), sequence.tokens.end()),
                prompt);
    }
  }
}

TEST_F(GenerationTest, ARoomTooSmallForAPieceGivesNone) {
  auto generation = Make(sequence_, Long(100), Options(1));
  EXPECT_TRUE(generation->NextItem(63).tokens.empty());
  EXPECT_TRUE(generation->NextItem(0).tokens.empty());
  EXPECT_EQ(generation->NextItem(64).tokens.size(), 64u);
  auto small = Make(sequence_, Long(5), Options(1));
  EXPECT_EQ(small->NextItem(5).tokens.size(), 5u);
}

TEST_F(GenerationTest, AKnownPromptGivesTheSameTokensWithoutBeingRead) {
  const Ids prompt = Long(150);
  auto whole = Make(sequence_, prompt, Options(9));
  const std::string text = Run(*whole);
  for (const size_t known : {1, 64, 100, 149, 150}) {
    ToySequence sequence;
    sequence.tokens.assign(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(known));
    std::vector<float> logits(kVocab);
    model_.Fill(sequence.tokens, logits);
    model_.pieces.clear();
    auto made = Generation::Create(sequence, kVocab, prompt, Options(9), tokenizer_, nullptr,
                                   {known, logits});
    ASSERT_TRUE(made) << made.error().ToString();
    Generation& generation = **made;
    EXPECT_EQ(generation.known_tokens(), known);
    std::string first;
    const auto begun = generation.Begin();
    ASSERT_TRUE(begun);
    EXPECT_EQ(begun->tokens.size(), known == 150 ? 1u : 0u);
    first += TextOf(*begun);
    const auto again = generation.Begin();  // the first token is picked once
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->tokens.empty());
    EXPECT_EQ(first + Run(generation), text);
    EXPECT_EQ(std::accumulate(model_.pieces.begin(), model_.pieces.end(), size_t{0}),
              150 - known + 9);
    EXPECT_EQ(sequence.tokens, sequence_.tokens);
    EXPECT_EQ(generation.draws(), whole->draws());
  }
}

TEST_F(GenerationTest, AKnownPromptAndNothingToGenerateIsDoneAtOnce) {
  sequence_.tokens = Long(20);
  const std::vector<float> logits(kVocab);
  auto made = Generation::Create(sequence_, kVocab, Long(20), Options(0), tokenizer_, nullptr,
                                 {20, logits});
  ASSERT_TRUE(made);
  const auto begun = (*made)->Begin();
  ASSERT_TRUE(begun);
  EXPECT_EQ(begun->finish, FinishReason::kLength);
  EXPECT_TRUE((*made)->emitted().empty());
}

TEST_F(GenerationTest, WhatIsKnownMustFit) {
  sequence_.tokens = Long(20);
  const std::vector<float> logits(kVocab);
  const auto error = [&](Ids prompt, GenerationOptions options, KnownPrompt known) {
    auto made = Generation::Create(sequence_, kVocab, std::move(prompt), std::move(options),
                                   tokenizer_, nullptr, known);
    return made ? ErrorCode::kInternal : made.error().code;
  };
  EXPECT_EQ(error(Long(30), Options(1), {21, logits}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(Long(10), Options(1), {11, logits}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(Long(20), Options(1), {20, {}}), ErrorCode::kInvalidArgument);
  // What is known counts once against the limit.
  GenerationOptions tight = Options(5);
  tight.context_limit = 35;
  EXPECT_EQ(error(Long(30), tight, {20, {}}), ErrorCode::kInternal);
  tight.context_limit = 34;
  EXPECT_EQ(error(Long(30), tight, {20, {}}), ErrorCode::kContextOverflow);
}

TEST_F(GenerationTest, AStopTokenIsNeitherEmittedNorIngested) {
  Script("abcd");
  GenerationOptions options = Options(100);
  options.stop_ids = {'z', 'd'};
  auto generation = Make(sequence_, {1}, options);
  EXPECT_EQ(Run(*generation), "abc");
  EXPECT_EQ(generation->finish_reason(), FinishReason::kStop);
  EXPECT_EQ(generation->stop_id(), 'd');
  EXPECT_FALSE(generation->stop_string());
  EXPECT_EQ(sequence_.tokens, (Ids{1, 'a', 'b', 'c'}));
  EXPECT_EQ(generation->draws(), 4u);
}

TEST_F(GenerationTest, AStopTokenFirstLeavesThePromptAlone) {
  Script("d");
  GenerationOptions options = Options(100);
  options.stop_ids = {'d'};
  auto generation = Make(sequence_, {1}, options);
  EXPECT_EQ(Run(*generation), "");
  EXPECT_EQ(sequence_.tokens, Ids{1});
}

TEST_F(GenerationTest, AStopStringIsCutFromTheText) {
  Script("one, two. three");
  GenerationOptions options = Options(100);
  options.stops = {"xyz", "two."};
  auto generation = Make(sequence_, {1}, options);
  EXPECT_EQ(Run(*generation), "one, ");
  EXPECT_EQ(generation->finish_reason(), FinishReason::kStop);
  EXPECT_EQ(generation->stop_string(), 1u);
  EXPECT_EQ(generation->emitted().size(), 9u);
  EXPECT_EQ(sequence_.length(), 10u);
}

TEST_F(GenerationTest, TheBeginningOfAStopStringIsShownAtTheEnd) {
  Script("one tw");
  GenerationOptions options = Options(6);
  options.stops = {"two"};
  auto generation = Make(sequence_, {1}, options);
  EXPECT_EQ(Run(*generation), "one tw");
  EXPECT_EQ(generation->finish_reason(), FinishReason::kLength);
}

TEST_F(GenerationTest, ACharacterCutByTheLimitIsReplaced) {
  Script("\xE2\x82\xAC\xE2\x82");
  auto generation = Make(sequence_, {1}, Options(5));
  EXPECT_EQ(Run(*generation), "€\uFFFD");
}

TEST_F(GenerationTest, TheLastTokenIsIngestedOnlyOnDemand) {
  Script("ab");
  auto generation = Make(sequence_, {1}, Options(2));
  while (!generation->finished()) {
    ForwardItem item = generation->NextItem(64);
    ASSERT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
    ASSERT_TRUE(generation->Accept());
  }
  EXPECT_EQ(sequence_.tokens, (Ids{1, 'a'}));
  std::optional<ForwardItem> item = generation->NormaliseItem();
  ASSERT_TRUE(item);
  ASSERT_TRUE(model_.Forward(*executor_, std::span(&*item, 1), nullptr));
  generation->AcceptNormalised();
  EXPECT_EQ(sequence_.tokens, (Ids{1, 'a', 'b'}));
  EXPECT_FALSE(generation->NormaliseItem());
}

TEST_F(GenerationTest, CancelAtEveryPointEqualsARunStoppedThere) {
  const Ids prompt = Long(200);
  for (int steps = 0; steps < 8; ++steps) {
    ToySequence sequence;
    auto generation = Make(sequence, prompt, Options(100));
    for (int i = 0; i < steps; ++i) {
      ForwardItem item = generation->NextItem(64);
      ASSERT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
      ASSERT_TRUE(generation->Accept());
    }
    EXPECT_EQ(generation->Cancel().finish, FinishReason::kCancelled);
    EXPECT_TRUE(generation->finished());
    if (std::optional<ForwardItem> item = generation->NormaliseItem()) {
      ASSERT_TRUE(model_.Forward(*executor_, std::span(&*item, 1), nullptr));
      generation->AcceptNormalised();
    }
    Ids want(prompt.begin(), prompt.begin() + std::min<ptrdiff_t>(200, steps * 64));
    want.insert(want.end(), generation->emitted().begin(), generation->emitted().end());
    EXPECT_EQ(sequence.tokens, want);
    EXPECT_EQ(generation->emitted().size(), static_cast<size_t>(std::max(0, steps - 3)));
    EXPECT_TRUE(generation->NextItem(64).tokens.empty());
  }
}

TEST_F(GenerationTest, CancelGivesTheTextHeldBack) {
  Script("ab");
  GenerationOptions options = Options(100);
  options.stops = {"abc"};
  auto generation = Make(sequence_, {1}, options);
  std::string text;
  const Status status = GenerateAll(model_, *executor_, *generation, [&](const auto& step) {
    text += TextOf(step);
    return generation->emitted().size() < 2;
  });
  ASSERT_TRUE(status);
  EXPECT_EQ(text, "ab");
  EXPECT_EQ(generation->finish_reason(), FinishReason::kCancelled);
}

TEST_F(GenerationTest, NoNewTokensReadsThePromptOnly) {
  auto generation = Make(sequence_, Long(70), Options(0));
  EXPECT_EQ(Run(*generation), "");
  EXPECT_EQ(sequence_.tokens, Long(70));
  EXPECT_EQ(generation->finish_reason(), FinishReason::kLength);
  EXPECT_EQ(generation->draws(), 0u);
}

TEST_F(GenerationTest, SamplingDoesNotDependOnHowThePromptWasCut) {
  std::vector<Ids> results;
  for (const size_t max : {64, 128, 512}) {
    ToySequence sequence;
    GenerationOptions options = Options(30);
    options.sampling.temperature = 1.0f;
    options.sampling.seed = 4;
    auto generation = Make(sequence, Long(300), options);
    while (!generation->finished()) {
      ForwardItem item = generation->NextItem(max);
      ASSERT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
      ASSERT_TRUE(generation->Accept());
    }
    results.emplace_back(generation->emitted().begin(), generation->emitted().end());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_F(GenerationTest, NotANumberEndsItWithThePosition) {
  model_.nan_after = 12;
  auto generation = Make(sequence_, Long(10), Options(20));
  const Status status = GenerateAll(model_, *executor_, *generation);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNumeric);
  EXPECT_NE(status.error().message.find("position 12"), std::string::npos);
}

TEST_F(GenerationTest, WithoutATokenizerThereAreIdsOnly) {
  Result<std::unique_ptr<Generation>> made =
      Generation::Create(sequence_, kVocab, {1}, Options(3), nullptr, nullptr);
  ASSERT_TRUE(made);
  EXPECT_EQ(Run(**made), "");
  EXPECT_EQ((*made)->emitted().size(), 3u);
}

TEST_F(GenerationTest, RequestsThatCannotBeServedAreRefusedBeforeTheyStart) {
  const auto code = [&](Ids prompt, GenerationOptions options, bool tokenizer = true) {
    const Result<std::unique_ptr<Generation>> made =
        Generation::Create(sequence_, kVocab, std::move(prompt), std::move(options),
                           tokenizer ? tokenizer_ : nullptr, nullptr);
    return made ? ErrorCode::kInternal : made.error().code;
  };
  sequence_.tokens = Long(90);
  GenerationOptions options = Options(5);
  options.context_limit = 100;
  EXPECT_EQ(code({1, 2, 3, 4, 5}, options), ErrorCode::kInternal);  // fits exactly
  EXPECT_EQ(code({1, 2, 3, 4, 5, 6}, options), ErrorCode::kContextOverflow);
  options.max_new = std::numeric_limits<size_t>::max();
  EXPECT_EQ(code({1}, options), ErrorCode::kContextOverflow);
  options.context_limit = 80;  // less than what the sequence holds already
  EXPECT_EQ(code({1}, options), ErrorCode::kContextOverflow);
  EXPECT_EQ(code({}, Options(5)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1, 300}, Options(5)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({-1}, Options(5)), ErrorCode::kInvalidArgument);
  options = Options(5);
  options.sampling.top_p = 0.0f;
  EXPECT_EQ(code({1}, options), ErrorCode::kInvalidArgument);
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{""}, std::vector<std::string>{"\xFF"},
        std::vector<std::string>{std::string(257, 'a')}, std::vector<std::string>(17, "a")}) {
    options = Options(5);
    options.stops = stops;
    EXPECT_EQ(code({1}, options), ErrorCode::kInvalidArgument);
  }
  options.stops = {"a"};
  EXPECT_EQ(code({1}, options, false), ErrorCode::kInvalidArgument);
}

TEST_F(GenerationTest, TimesAreInOrder) {
  auto generation = Make(sequence_, Long(10), Options(3));
  Run(*generation);
  const GenerationTimes& t = generation->times();
  EXPECT_LE(t.created, t.prefill_started);
  EXPECT_LE(t.prefill_started, t.prefill_done);
  EXPECT_LE(t.prefill_done, t.first_token);
  EXPECT_LE(t.first_token, t.finished);
}

}  // namespace
}  // namespace mk
