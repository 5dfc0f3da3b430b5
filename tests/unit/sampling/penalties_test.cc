// Biases, bans and the penalties on tokens that came before.

#include "engine/sampling/token_penalties.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/sampling/processing.h"
#include "engine/sampling/sampler.h"

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<int32_t>;

TEST(LogitBias, AddsAndBans) {
  LogitBias bias({{1, 2.5f}, {1, -1.0f}, {0, -100.0f}}, {2, 2});
  std::vector<float> row = {1, 1, 1, 1};
  bias.Apply({}, row);
  EXPECT_EQ(row, (std::vector<float>{-99, 2.5f, -kInf, 1}));
}

TEST(TokenPenalties, FollowTheirDefinitions) {
  PenaltyOptions options;
  options.repetition = 2.0f;
  TokenPenalties repetition(options, {});
  std::vector<float> row = {4, -4, 4, 0};
  repetition.Apply(Ids{0, 1, 1, 3}, row);
  EXPECT_EQ(row, (std::vector<float>{2, -8, 4, 0}));

  options.repetition = 1.0f;
  options.frequency = 0.5f;
  options.presence = 0.25f;
  TokenPenalties others(options, {});
  row = {4, 4, 4, 4};
  others.Apply(Ids{0, 1, 1, 1}, row);
  EXPECT_EQ(row, (std::vector<float>{3.25f, 2.25f, 4, 4}));
}

// Counted anew every time.
std::vector<float> Naive(const PenaltyOptions& options, const Ids& prompt, const Ids& emitted,
                         std::vector<float> row) {
  Ids all = options.prompt ? prompt : Ids();
  all.insert(all.end(), emitted.begin(), emitted.end());
  if (options.window > 0 && all.size() > options.window) {
    all.erase(all.begin(), all.end() - static_cast<long>(options.window));
  }
  for (size_t i = 0; i < row.size(); ++i) {
    const auto count = std::count(all.begin(), all.end(), static_cast<int32_t>(i));
    if (count == 0) continue;
    row[i] = row[i] > 0 ? row[i] / options.repetition : row[i] * options.repetition;
    row[i] -= options.frequency * static_cast<float>(count);
    row[i] -= options.presence;
  }
  return row;
}

// Emitted tokens grow, are taken back and go on differently, as guesses do.
TEST(TokenPenalties, DependOnTheEmittedTokensAlone) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int round = 0; round < 60; ++round) {
    PenaltyOptions options;
    options.repetition = random() % 2 == 0 ? 1.0f : 1.5f;
    options.frequency = 0.25f * static_cast<float>(random() % 3);
    options.presence = -0.5f * static_cast<float>(random() % 3);
    options.window = static_cast<uint32_t>(random() % 3 == 0 ? 0 : 1 + random() % 20);
    options.prompt = random() % 2 == 0;
    Ids prompt(random() % 30);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % 8);
    TokenPenalties penalties(options, prompt);
    Ids emitted;
    for (int step = 0; step < 200; ++step) {
      const size_t keep = random() % 3 == 0 ? random() % (emitted.size() + 1) : emitted.size();
      emitted.resize(keep);
      for (size_t more = random() % 4; more > 0; --more) {
        emitted.push_back(static_cast<int32_t>(random() % 8));
      }
      std::vector<float> row(8);
      for (float& l : row) l = normal(random);
      const std::vector<float> want = Naive(options, prompt, emitted, row);
      penalties.Apply(emitted, row);
      ASSERT_EQ(row, want) << "round " << round << " step " << step;
    }
  }
}

TEST(TokenPenalties, TokensOutsideOfTheRowAreLeftAlone) {
  PenaltyOptions options;
  options.presence = 1.0f;
  options.prompt = true;
  const Ids prompt = {-1, 0, 7, 2147483647};
  TokenPenalties penalties(options, prompt);
  std::vector<float> row = {0, 0};
  penalties.Apply({}, row);
  EXPECT_EQ(row, (std::vector<float>{-1, 0}));
}

// The same picks whether tokens are taken one by one, or guessed ahead and taken back.
TEST(Processing, PicksDoNotDependOnWhatWasGuessed) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  SamplingOptions o;
  o.temperature = 0.9f;
  o.top_p = 0.9f;
  o.seed = 4;
  o.processing.penalties.repetition = 1.3f;
  o.processing.penalties.frequency = 0.4f;
  o.processing.penalties.window = 9;
  o.processing.penalties.prompt = true;
  o.processing.dry.multiplier = 1.5f;
  o.processing.dry_compat = 1.0f;
  const Ids prompt = {1, 2, 3, 1, 2};
  Sampler plain(o, prompt);
  Sampler guessing(o, prompt);
  Ids emitted;
  for (uint64_t step = 0; step < 300; ++step) {
    std::vector<float> row(6);
    for (float& l : row) l = normal(random);
    Ids guess = emitted;
    for (size_t ahead = random() % 5; ahead > 0; --ahead) {
      guess.push_back(static_cast<int32_t>(random() % 6));
      ASSERT_TRUE(guessing.Pick(row, step + guess.size() - emitted.size(), guess));
    }
    const Result<Picked> want = plain.Pick(row, step, emitted);
    const Result<Picked> got = guessing.Pick(row, step, emitted);
    ASSERT_TRUE(want && got);
    ASSERT_EQ(got->id, want->id) << "step " << step;
    ASSERT_EQ(got->probability, want->probability);
    emitted.push_back(want->id);
  }
}

TEST(Processing, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    ProcessingOptions o;
    change(o);
    const Status status = ValidateProcessing(o);
    return status ? std::string() : status.error().message;
  };
  for (const float bad : {0.0f, -1.0f, 10.5f, kNan, kInf}) {
    EXPECT_EQ(message([&](auto& o) { o.penalties.repetition = bad; }).find("repetition"), 0u);
  }
  for (const float bad : {-2.5f, 2.5f, kNan, kInf}) {
    EXPECT_EQ(message([&](auto& o) { o.penalties.frequency = bad; }).find("frequency"), 0u);
    EXPECT_EQ(message([&](auto& o) { o.penalties.presence = bad; }).find("presence"), 0u);
  }
  for (const float bad : {-100.5f, 101.0f, kNan}) {
    EXPECT_NE(message([&](auto& o) {
                o.biases = {{0, bad}};
              }).find("logit_bias"),
              std::string::npos);
  }
  EXPECT_EQ(message([](auto& o) { o.biases.resize(1025); }).find("logit_bias"), 0u);
  EXPECT_EQ(message([](auto& o) { o.banned.resize(1025); }).find("ban"), 0u);
}

TEST(Processing, TokensAreCheckedAgainstTheVocabulary) {
  ProcessingOptions o;
  o.biases = {{9, 1.0f}};
  o.banned = {0, 9};
  EXPECT_TRUE(ValidateTokens(o, 10));
  const Status outside = ValidateTokens(o, 9);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(outside.error().message.find("token 9"), std::string::npos);
  o.biases.clear();
  o.banned = {-1};
  EXPECT_FALSE(ValidateTokens(o, 10));
  o.banned = {0, 1, 1, 0};
  EXPECT_TRUE(ValidateTokens(o, 3));
  const Status all = ValidateTokens(o, 2);
  ASSERT_FALSE(all);
  EXPECT_NE(all.error().message.find("every token"), std::string::npos);
}

}  // namespace
}  // namespace mk
