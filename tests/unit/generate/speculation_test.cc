// Speculative generation equals plain generation, whatever is guessed.

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "engine/generate/generate_all.h"
#include "engine/model/executor.h"
#include "engine/tokenizer/byte_tokenizer.h"
#include "tests/unit/generate/toy_model.h"

namespace mk {
namespace {

// Everything that a run shows, position by position.
struct Shown {
  struct Row {
    size_t position = 0;  // of the token that was ingested before
    std::vector<float> logits;
    int32_t id = -1;  // that was picked and emitted
    float probability = 0;
    std::string text;
    bool operator==(const Row&) const = default;
  };
  std::vector<Row> rows;
  std::string rest;
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_id;
  std::optional<size_t> stop_string;
  uint64_t draws = 0;
  Ids emitted;
  Ids state;                  // tokens of the sequence once it is up to date
  std::vector<float> logits;  // after them
  bool operator==(const Shown&) const = default;
};

struct Ran {
  Shown shown;
  SpeculationStats stats;
};

class SpeculationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Executor>> made = Executor::Create(1);
    ASSERT_TRUE(made);
    executor_ = std::move(*made);
    Result<std::shared_ptr<const Tokenizer>> tokenizer = MakeByteTokenizer(kVocab);
    ASSERT_TRUE(tokenizer);
    tokenizer_ = *tokenizer;
    // What comes next depends on one token only: greedy runs come into cycles, sampled ones often
    // say what they said before.
    model_.order = 1;
  }

  static GenerationOptions Options(size_t max_new, bool sampled = false) {
    GenerationOptions options;
    options.max_new = max_new;
    options.context_limit = 4096;
    if (sampled) {
      options.sampling.temperature = 0.02f;
      options.sampling.top_k = 2;
      options.sampling.seed = 11;
    }
    return options;
  }

  static GenerationOptions With(GenerationOptions options, uint32_t ngram, uint32_t automaton,
                                bool adaptive = false) {
    options.speculation = {ngram, automaton, adaptive};
    return options;
  }

  // Cancelled once `cancel_after` tokens are there.
  Ran Run(const Ids& prompt, GenerationOptions options, size_t cancel_after = SIZE_MAX,
          size_t room = kMaxForwardTokens) {
    Ran ran;
    ToySequence sequence;
    auto made =
        Generation::Create(sequence, kVocab, prompt, std::move(options), tokenizer_, nullptr);
    EXPECT_TRUE(made) << made.error().ToString();
    Generation& generation = **made;
    while (!generation.finished()) {
      ForwardItem item = generation.NextItem(generation.prefilling() ? kMaxForwardTokens : room);
      EXPECT_LE(item.tokens.size(), std::max(room, prompt.size()));
      EXPECT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
      generation.Took(item.tokens.size(), 1.0 + 0.1 * static_cast<double>(item.tokens.size()));
      const auto step = generation.Accept();
      EXPECT_TRUE(step) << step.error().ToString();
      if (!step) return ran;
      Take(generation, sequence, *step, ran.shown);
      if (generation.emitted().size() >= cancel_after && !generation.finished()) {
        Take(generation, sequence, generation.Cancel(), ran.shown);
      }
    }
    if (auto item = generation.NormaliseItem()) {
      EXPECT_TRUE(model_.Forward(*executor_, std::span(&*item, 1), nullptr));
      generation.AcceptNormalised();
    }
    Shown& shown = ran.shown;
    shown.finish = generation.finish_reason();
    shown.stop_id = generation.stop_id();
    shown.stop_string = generation.stop_string();
    shown.draws = generation.draws();
    shown.emitted.assign(generation.emitted().begin(), generation.emitted().end());
    shown.state = sequence.tokens;
    shown.logits.assign(generation.logits().begin(), generation.logits().end());
    if (generation.speculation() != nullptr) ran.stats = *generation.speculation();
    return ran;
  }

  static void Take(const Generation& generation, const ToySequence& sequence,
                   const GenerationStep& step, Shown& shown) {
    const size_t first = sequence.length() - step.rows;
    for (size_t i = 0; i < step.rows; ++i) {
      Shown::Row& row = shown.rows.emplace_back();
      row.position = first + i;
      row.logits.assign(generation.row(i).begin(), generation.row(i).end());
      if (i >= step.tokens.size()) continue;
      row.id = step.tokens[i].id;
      row.probability = step.tokens[i].probability;
      for (const TextPiece& piece : step.tokens[i].text) row.text += piece.text;
    }
    for (const TextPiece& piece : step.text) shown.rest += piece.text;
  }

  static void ExpectSums(const Ran& ran) {
    const SpeculationStats& stats = ran.stats;
    const auto sum = [](const std::vector<uint64_t>& counts) {
      return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
    };
    EXPECT_EQ(sum(stats.drafted_at), stats.drafted);
    EXPECT_EQ(sum(stats.accepted_at), stats.accepted);
    EXPECT_LE(stats.bonus, stats.passes);
    // The first token comes from the prompt, each other draw from a step or an accepted token.
    EXPECT_EQ(ran.shown.draws, 1 + stats.passes + stats.singles + stats.accepted);
  }

  ToyModel model_;
  std::unique_ptr<Executor> executor_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

const Ids kPrompt = {'o', 'n', 'c', 'e', ' ', 'a', ' ', 'o', 'n', 'c', 'e'};

TEST_F(SpeculationTest, EqualsAPlainRunForEveryLengthAndProposer) {
  for (const bool sampled : {false, true}) {
    const Ran plain = Run(kPrompt, Options(150, sampled));
    ASSERT_EQ(plain.shown.emitted.size(), 150u);
    uint64_t accepted = 0;
    uint64_t rejected = 0;
    for (uint32_t n = 1; n <= 24; ++n) {
      const std::vector<std::pair<uint32_t, uint32_t>> proposers = {{n, 0}, {0, n}, {n, n}};
      for (const auto& [ngram, automaton] : proposers) {
        for (const bool adaptive : {false, true}) {
          const Ran ran = Run(kPrompt, With(Options(150, sampled), ngram, automaton, adaptive));
          ASSERT_TRUE(ran.shown == plain.shown) << n << (sampled ? ", sampled" : ", greedy");
          ExpectSums(ran);
          accepted += ran.stats.accepted;
          rejected += ran.stats.rejected();
        }
      }
    }
    EXPECT_GT(accepted, sampled ? 500u : 3000u);
    EXPECT_EQ(rejected > 500, sampled);
  }
}

TEST_F(SpeculationTest, SavesForwardPassesWhereTextRepeatsItself) {
  const Ran ran = Run(kPrompt, With(Options(400), 16, 0));
  EXPECT_LT(ran.stats.passes + ran.stats.singles, 200u);
}

TEST_F(SpeculationTest, EqualsAPlainRunUnderEveryLimit) {
  for (size_t max_new = 1; max_new <= 40; ++max_new) {
    for (const bool sampled : {false, true}) {
      const Ran plain = Run(kPrompt, Options(max_new, sampled));
      const Ran ran = Run(kPrompt, With(Options(max_new, sampled), 7, 7));
      ASSERT_TRUE(ran.shown == plain.shown) << max_new;
    }
  }
}

TEST_F(SpeculationTest, EqualsAPlainRunInEveryRoom) {
  const Ran plain = Run(kPrompt, Options(80));
  for (size_t room = 1; room <= 12; ++room) {
    const Ran ran = Run(kPrompt, With(Options(80), 9, 0), SIZE_MAX, room);
    ASSERT_TRUE(ran.shown == plain.shown) << room;
    if (room == 1) {
      EXPECT_EQ(ran.stats.drafted, 0u);
    }
  }
}

// A stop token at every offset, inside of a draft and behind it.
TEST_F(SpeculationTest, EqualsAPlainRunThatStopsAnywhere) {
  for (const bool sampled : {false, true}) {
    const Ids ids = Run(kPrompt, Options(90, sampled)).shown.emitted;
    for (size_t stop = 0; stop < ids.size(); ++stop) {
      GenerationOptions options = Options(90, sampled);
      options.stop_ids = {ids[stop]};
      const Ran plain = Run(kPrompt, options);
      EXPECT_EQ(plain.shown.finish, FinishReason::kStop);
      ASSERT_TRUE(Run(kPrompt, With(options, 8, 0)).shown == plain.shown) << stop;
      ASSERT_TRUE(Run(kPrompt, With(options, 0, 8)).shown == plain.shown) << stop;
    }
  }
}

// The scripted text comes again and again; a stop string ends in every place of it.
TEST_F(SpeculationTest, EqualsAPlainRunWithStopStringsAnywhere) {
  model_.script_start = 1;
  for (int i = 0; i < 4; ++i) {
    for (const char c : std::string("the quick brown fox; ")) {
      model_.script.push_back(static_cast<uint8_t>(c));
    }
    model_.script.push_back('0' + i);
  }
  const std::string text(model_.script.begin(), model_.script.end());
  for (size_t end = 1; end <= text.size(); ++end) {
    for (const size_t length : {1, 3, 30}) {
      GenerationOptions options = Options(88);
      options.stops = {"never there", text.substr(end - std::min(end, length), length)};
      const Ran plain = Run({1}, options);
      EXPECT_EQ(plain.shown.finish, FinishReason::kStop);
      ASSERT_TRUE(Run({1}, With(options, 12, 12)).shown == plain.shown) << end << ", " << length;
    }
  }
}

TEST_F(SpeculationTest, EqualsAPlainRunThatIsCancelled) {
  for (size_t after = 1; after < 60; ++after) {
    const Ran ran = Run(kPrompt, With(Options(100, true), 8, 8), after);
    EXPECT_EQ(ran.shown.finish, FinishReason::kCancelled);
    // A step may bring more tokens than were waited for.
    const size_t there = ran.shown.emitted.size();
    ASSERT_GE(there, after);
    ASSERT_TRUE(ran.shown == Run(kPrompt, Options(100, true), there).shown) << after;
  }
}

TEST_F(SpeculationTest, DraftsNeitherStopTokensNorMoreThanIsLeft) {
  const auto second_item = [&](size_t max_new, Ids stop_ids) {
    // 5 6 was followed by 7 299 8.
    model_.script_start = 8;
    model_.script = {6};
    GenerationOptions options = With(Options(max_new), 10, 0);
    options.stop_ids = std::move(stop_ids);
    ToySequence sequence;
    auto made =
        Generation::Create(sequence, kVocab, {1, 5, 6, 7, 299, 8, 4, 5}, options, nullptr, nullptr);
    EXPECT_TRUE(made);
    ForwardItem item = (*made)->NextItem(64);
    EXPECT_TRUE(model_.Forward(*executor_, std::span(&item, 1), nullptr));
    EXPECT_TRUE((*made)->Accept());
    item = (*made)->NextItem(64);
    EXPECT_EQ(item.draft, item.tokens.size() > 1);
    EXPECT_EQ(item.wanted, item.draft ? LogitsWanted::kAll : LogitsWanted::kLast);
    EXPECT_EQ(item.logits.size(), item.tokens.size() * kVocab);
    return Ids(item.tokens.begin(), item.tokens.end());
  };
  EXPECT_EQ(second_item(20, {}), (Ids{6, 7, 299, 8, 4, 5, 6, 7, 299, 8, 4}));
  EXPECT_EQ(second_item(20, {8, 299}), (Ids{6, 7}));
  EXPECT_EQ(second_item(20, {7}), Ids{6});
  // The last token of all comes behind the draft.
  EXPECT_EQ(second_item(5, {}), (Ids{6, 7, 299, 8}));
  EXPECT_EQ(second_item(2, {}), Ids{6});
}

TEST_F(SpeculationTest, NotANumberInADraftEndsItLikeAPlainRun) {
  for (size_t after = 12; after < 60; ++after) {
    model_.nan_after = after;
    ToySequence sequence;
    auto made = Generation::Create(sequence, kVocab, kPrompt, With(Options(100), 8, 0), tokenizer_,
                                   nullptr);
    ASSERT_TRUE(made);
    const Status status = GenerateAll(model_, *executor_, **made);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kNumeric);
    EXPECT_NE(status.error().message.find("position " + std::to_string(after)), std::string::npos)
        << status.error().message;
    EXPECT_EQ((*made)->emitted().size(), after - kPrompt.size());
  }
}

TEST_F(SpeculationTest, RefusesDraftsThatAreTooLong) {
  ToySequence sequence;
  const auto made = Generation::Create(sequence, kVocab, kPrompt,
                                       With(Options(1), kMaxDraft + 1, 0), nullptr, nullptr);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace mk
