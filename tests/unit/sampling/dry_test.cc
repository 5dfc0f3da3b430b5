// Both penalties against the words of their definitions, and against recorded values.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "engine/sampling/dry_compat.h"
#include "engine/sampling/dry_penalty.h"
#include "engine/sampling/processing.h"

namespace mk {
namespace {

constexpr size_t kVocab = 12;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<int32_t>;

// What was taken off each logit.
std::map<int32_t, float> Taken(LogitProcessor& processor, const Ids& emitted) {
  std::vector<float> row(kVocab, 0.0f);
  processor.Apply(emitted, row);
  std::map<int32_t, float> taken;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != 0.0f) taken[static_cast<int32_t>(i)] = -row[i];
  }
  return taken;
}

TEST(DryCompat, GivesTheRecordedPenalties) {
  DryCompat dry(1.0f);
  const auto expect = [&](const Ids& out, const std::map<int32_t, float>& want) {
    const auto got = Taken(dry, out);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [id, penalty] : want) EXPECT_NEAR(got.at(id), penalty, 1e-5) << id;
  };
  expect({5, 6, 7, 8, 5, 6, 7}, {{8, 1.3122f}});
  expect({1, 1, 1, 1}, {{1, 2.61f}});
  expect({1, 2, 1, 2}, {{1, 0.81f}});
  expect({5, 6, 7}, {});
  expect({}, {});
  expect({1, 1}, {});
}

TEST(DryCompat, SeesTheLast64TokensOnly) {
  DryCompat dry(1.0f);
  Ids out = {1, 2, 3};
  for (int i = 0; i < 60; ++i) out.push_back(4 + i % 5);
  out.insert(out.end(), {1, 2});
  EXPECT_TRUE(Taken(dry, out).contains(3) == false);  // 65 tokens: the first one has left
  out.erase(out.begin() + 10);
  EXPECT_TRUE(Taken(dry, out).contains(3));
}

struct Rule {
  double multiplier = 0.8;
  double base = 1.75;
  size_t allowed = 2;
  size_t range = 1024;
  Ids breakers = {};
};

// The loops of the reference implementation in text-generation-webui, in their words: every place
// of the last token, walked back as far as it goes.
std::map<int32_t, double> NaiveDry(Ids ids, const Rule& rule) {
  const auto breaks = [&](int32_t id) {
    return std::count(rule.breakers.begin(), rule.breakers.end(), id) > 0;
  };
  if (ids.size() > rule.range) ids.erase(ids.begin(), ids.end() - static_cast<long>(rule.range));
  std::map<int32_t, double> penalties;
  if (ids.empty() || breaks(ids.back())) return penalties;
  std::map<int32_t, size_t> lengths;
  const size_t n = ids.size();
  for (size_t i = 0; i + 1 < n; ++i) {
    if (ids[i] != ids.back()) continue;
    const int32_t next = ids[i + 1];
    if (breaks(next)) continue;
    size_t length = 1;
    while (length <= i && ids[i - length] == ids[n - 1 - length] && !breaks(ids[i - length])) {
      ++length;
    }
    lengths[next] = std::max(lengths[next], length);
  }
  for (const auto& [id, length] : lengths) {
    if (length < rule.allowed) continue;
    penalties[id] =
        rule.multiplier * std::pow(rule.base, static_cast<double>(length - rule.allowed));
  }
  return penalties;
}

DryOptions OptionsOf(const Rule& rule) {
  DryOptions options;
  options.multiplier = static_cast<float>(rule.multiplier);
  options.base = static_cast<float>(rule.base);
  options.allowed_length = static_cast<uint32_t>(rule.allowed);
  options.range = static_cast<uint32_t>(rule.range);
  std::vector<bool> breakers(kVocab);
  for (const int32_t id : rule.breakers) breakers[static_cast<size_t>(id)] = true;
  options.breakers = std::make_shared<const std::vector<bool>>(std::move(breakers));
  return options;
}

TEST(DryPenalty, GrowsWithTheLengthOfTheRepeat) {
  DryPenalty dry(OptionsOf({}), {});
  EXPECT_TRUE(Taken(dry, {5, 6}).empty());
  EXPECT_TRUE(Taken(dry, {6, 7, 5, 6}).empty());  // one token alone is no repeat
  EXPECT_NEAR(Taken(dry, {5, 6, 7, 5, 6}).at(7), 0.8, 1e-6);
  EXPECT_NEAR(Taken(dry, {4, 5, 6, 7, 4, 5, 6}).at(7), 0.8 * 1.75, 1e-6);
  // The longest repeat of several counts.
  EXPECT_NEAR(Taken(dry, {5, 6, 7, 4, 5, 6, 7, 4, 5, 6}).at(7), 0.8 * std::pow(1.75, 4), 1e-5);
}

TEST(DryPenalty, EqualsTheNaiveRule) {
  std::mt19937 random(23);
  for (int round = 0; round < 2000; ++round) {
    Rule rule;
    rule.base = 1.0 + 0.25 * static_cast<double>(random() % 5);
    rule.allowed = 1 + random() % 4;
    rule.range = 1 + random() % 80;
    if (random() % 2 == 0) rule.breakers = {static_cast<int32_t>(random() % 4)};
    const size_t kinds = 1 + random() % 4;
    const auto tokens = [&](size_t most) {
      Ids ids(random() % most);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % kinds);
      return ids;
    };
    const Ids prompt = tokens(40);
    const Ids emitted = tokens(90);
    DryOptions options = OptionsOf(rule);
    options.prompt = random() % 2 == 0;
    Ids all = options.prompt ? prompt : Ids();
    all.insert(all.end(), emitted.begin(), emitted.end());
    DryPenalty dry(options, prompt);
    const auto want = NaiveDry(all, rule);
    const auto got = Taken(dry, emitted);
    ASSERT_EQ(got.size(), want.size()) << "round " << round;
    for (const auto& [id, penalty] : want) {
      ASSERT_NEAR(got.at(id), penalty, 1e-5 * penalty) << "round " << round;
    }
  }
}

TEST(DryPenalty, UnknownTokensOfAPromptRepeatNothing) {
  const Ids prompt = {-1, -1, 5, -1, -1, 5, 99, 3, 99};
  DryPenalty dry(OptionsOf({.allowed = 1}), prompt);
  EXPECT_TRUE(Taken(dry, {-1}).empty());
  const auto taken = Taken(dry, {3});  // 99 is in no row of 12
  EXPECT_TRUE(taken.empty());
}

TEST(DryPenalty, StaysFinite) {
  DryOptions options = OptionsOf({.base = 10.0});
  options.range = 65536;
  DryPenalty dry(options, {});
  const float taken = Taken(dry, Ids(20000, 7)).at(7);
  EXPECT_TRUE(std::isfinite(taken));
  EXPECT_GT(taken, 1e29f);
}

TEST(Dry, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    ProcessingOptions o;
    change(o);
    const Status status = ValidateProcessing(o);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message([](ProcessingOptions&) {}), "");
  for (const float bad : {-1.0f, 101.0f, kNan}) {
    EXPECT_EQ(message([&](auto& o) { o.dry.multiplier = bad; }).find("dry_multiplier"), 0u);
    EXPECT_EQ(message([&](auto& o) { o.dry_compat = bad; }).find("dry_compat"), 0u);
  }
  for (const float bad : {0.5f, 11.0f, kNan}) {
    EXPECT_EQ(message([&](auto& o) { o.dry.base = bad; }).find("dry_base"), 0u);
  }
  EXPECT_EQ(message([](auto& o) { o.dry.allowed_length = 0; }).find("dry_allowed_length"), 0u);
  EXPECT_EQ(message([](auto& o) { o.dry.range = 0; }).find("dry_range"), 0u);
  EXPECT_EQ(message([](auto& o) { o.dry.range = 65537; }).find("dry_range"), 0u);
}

}  // namespace
}  // namespace mk
