#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The rules with everything sorted: sums of type Real.
template <typename Real>
Picked FullSortRule(const std::vector<float>& logits, const SamplingOptions& o, double uniform,
                    bool compat) {
  struct Entry {
    float q;
    int32_t id;
  };
  const float m = *std::max_element(logits.begin(), logits.end());
  std::vector<Entry> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    all.push_back({std::exp((logits[i] - m) * (1.0f / o.temperature)), static_cast<int32_t>(i)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Entry& a, const Entry& b) { return a.q > b.q; });
  if (o.top_k > 0 && o.top_k < all.size()) all.resize(o.top_k);
  Real total = 0;
  for (const Entry& e : all) total += e.q;
  Real share = 0;
  size_t kept = all.size();
  for (size_t i = 0; i < all.size() && (compat || o.top_p < 1.0f); ++i) {
    share += compat ? static_cast<Real>(all[i].q / total) : static_cast<Real>(all[i].q);
    if (share >= (compat ? static_cast<Real>(o.top_p) : static_cast<Real>(o.top_p) * total)) {
      kept = i + 1;
      break;
    }
  }
  while (kept > 1 && all[kept - 1].q < o.min_p) --kept;
  Real mass = 0;
  for (size_t i = 0; i < kept; ++i) mass += all[i].q;
  if (compat) {
    Real r = static_cast<float>(uniform) * mass;
    for (size_t i = 0; i < kept; ++i) {
      r -= all[i].q;
      if (r <= 0) return {all[i].id, static_cast<float>(all[i].q / mass)};
    }
    return {all[kept - 1].id, static_cast<float>(all[kept - 1].q / mass)};
  }
  Real sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += all[i].q;
    if (sum > uniform * mass) return {all[i].id, static_cast<float>(all[i].q / mass)};
  }
  return {all[kept - 1].id, static_cast<float>(all[kept - 1].q / mass)};
}

std::vector<float> RandomRow(std::mt19937& random, size_t size, int kind) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(size);
  for (float& l : row) {
    l = normal(random);
    if (kind == 1) l = std::round(l);               // heavy ties
    if (kind == 2) l = 0.0f;                        // nothing but ties
    if (kind == 3 && random() % 3 == 0) l = -kInf;  // banned tokens
    if (kind == 4) l *= 10.0f;                      // most of the mass in few
  }
  return row;
}

TEST(Sampler, PartialSelectionEqualsTheFullSort) {
  std::mt19937 random(17);
  for (const RandomProfile profile : {RandomProfile::kPhilox, RandomProfile::kCompat1}) {
    const bool compat = profile == RandomProfile::kCompat1;
    for (int round = 0; round < 600; ++round) {
      const size_t size = round % 60 == 0 ? 163840 : 1 + random() % 3000;
      const std::vector<float> row = RandomRow(random, size, round % 5);
      SamplingOptions o;
      o.random = profile;
      o.seed = random();
      o.temperature = std::vector<float>{0.3f, 0.8f, 1.0f, 2.5f, 100.0f}[random() % 5];
      o.top_p = std::vector<float>{1.0f, 0.9f, 0.5f, 0.999f, 1e-6f}[random() % 5];
      o.top_k = std::vector<uint32_t>{0, 1, 3, 40, 1000, 1u << 20}[random() % 6];
      o.min_p = std::vector<float>{0.0f, 0.0f, 0.05f, 1.0f, 1e-8f}[random() % 5];
      const uint64_t draw = random() % 10;
      const double uniform = Random(profile, o.seed).Uniform(draw);
      Sampler sampler(o);
      const Result<Picked> got = sampler.Pick(row, draw);
      ASSERT_TRUE(got);
      const Picked want = compat ? FullSortRule<float>(row, o, uniform, true)
                                 : FullSortRule<double>(row, o, uniform, false);
      ASSERT_EQ(got->id, want.id) << "round " << round << " compat " << compat;
      if (compat) {
        ASSERT_EQ(got->probability, want.probability);
      } else {
        ASSERT_NEAR(got->probability, want.probability, 1e-6);
      }
    }
  }
}

TEST(Sampler, Compat1GivesTheRecordedPicks) {
  SamplingOptions o;
  o.temperature = 0.8f;
  o.top_p = 0.9f;
  o.seed = 42;
  o.random = RandomProfile::kCompat1;
  Sampler sampler(o);
  const std::vector<float> row = {1, 3, 2, 0, 2.5f, -1};
  const std::vector<int32_t> want = {4, 1, 1, 1, 4, 1, 1, 4};
  for (size_t i = 0; i < want.size(); ++i) {
    const Result<Picked> got = sampler.Pick(row, i);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->id, want[i]) << i;
    EXPECT_NEAR(got->probability, want[i] == 1 ? 0.5489 : 0.2938, 5e-5);
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingOptions o;
  o.temperature = 1.0f;
  o.seed = 3;
  Sampler sampler(o);
  const std::vector<float> row = {std::log(1.0f), std::log(2.0f), std::log(3.0f), std::log(4.0f)};
  std::array<int, 4> counts{};
  for (uint64_t i = 0; i < 100000; ++i) ++counts[static_cast<size_t>(sampler.Pick(row, i)->id)];
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(counts[i], 10000.0 * (1.0 + i), 600.0);
}

TEST(Sampler, ADrawDependsOnItsIndexAlone) {
  SamplingOptions o;
  o.temperature = 1.0f;
  o.seed = 5;
  const std::vector<float> row(1000, 0.0f);
  Sampler all(o);
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < 20; ++i) ids.push_back(all.Pick(row, i)->id);
  o.first_draw = 12;  // a conversation that goes on
  Sampler later(o);
  EXPECT_EQ(later.Pick(row, 3)->id, ids[15]);
  EXPECT_EQ(later.Pick(row, 0)->id, ids[12]);
}

TEST(Greedy, TakesTheLowestIdAmongEquals) {
  EXPECT_EQ(*Argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(*Argmax(std::vector<float>{-kInf, -5, -kInf}), 1);
  EXPECT_EQ(*Argmax(std::vector<float>{0.0f, -0.0f}), 0);
  EXPECT_EQ(*Argmax(std::vector<float>{-0.0f, 0.0f}), 0);
  Sampler sampler{SamplingOptions{}};
  EXPECT_EQ(sampler.Pick(std::vector<float>{7, 7, 7}, 0)->id, 0);
  EXPECT_EQ(sampler.Pick(std::vector<float>{7, 7, 7}, 0)->probability, 1.0f);
}

TEST(Sampler, BrokenLogitsAreErrors) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingOptions o;
    o.temperature = temperature;
    Sampler sampler(o);
    for (const std::vector<float>& row :
         {std::vector<float>{1, kNan, 2}, std::vector<float>{kNan, kNan},
          std::vector<float>{1, kInf}, std::vector<float>{-kInf, -kInf}, std::vector<float>{}}) {
      const Result<Picked> got = sampler.Pick(row, 0);
      ASSERT_FALSE(got);
      EXPECT_EQ(got.error().code, ErrorCode::kNumeric);
    }
  }
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    SamplingOptions o;
    change(o);
    const Status status = ValidateSampling(o);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message([](SamplingOptions&) {}), "");
  for (const float bad : {-0.1f, 101.0f, kNan, kInf}) {
    EXPECT_EQ(message([&](SamplingOptions& o) { o.temperature = bad; }).find("temperature"), 0u);
  }
  EXPECT_EQ(message([](SamplingOptions& o) { o.temperature = 1e-9f; }).find("temperature"), 0u);
  for (const float bad : {0.0f, 1.5f, -1.0f, kNan}) {
    EXPECT_EQ(message([&](SamplingOptions& o) { o.top_p = bad; }).find("top_p"), 0u);
  }
  for (const float bad : {-0.5f, 1.5f, kNan}) {
    EXPECT_EQ(message([&](SamplingOptions& o) { o.min_p = bad; }).find("min_p"), 0u);
  }
  for (const float bad : {0.0f, 1.5f, kNan}) {
    EXPECT_EQ(message([&](SamplingOptions& o) { o.typical_p = bad; }).find("typical_p"), 0u);
  }
  EXPECT_EQ(message([](SamplingOptions& o) {
              o.typical_p = 0.5f;
              o.random = RandomProfile::kCompat1;
            }).find("typical_p must be 1"),
            0u);
  EXPECT_EQ(message([](SamplingOptions& o) { o.first_draw = 1u << 25; }).find("first_draw"), 0u);
}

TEST(Sampler, ExtremeTemperaturesStayFinite) {
  std::mt19937 random(1);
  const std::vector<float> row = RandomRow(random, 1000, 0);
  for (const float temperature : {1e-4f, 100.0f}) {
    SamplingOptions o;
    o.temperature = temperature;
    Sampler sampler(o);
    const Result<Picked> got = sampler.Pick(row, 0);
    ASSERT_TRUE(got);
    EXPECT_TRUE(std::isfinite(got->probability));
    EXPECT_TRUE(temperature > 1.0f || got->id == *Argmax(row));
  }
  SamplingOptions o;
  o.temperature = 1.0f;
  Sampler sampler(o);
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(sampler.Pick(std::vector<float>{-largest, largest}, 0)->id, 1);
}

// The order shows: a bias lifts a token before the penalty divides it, and a ban is final.
TEST(Sampler, ProcessorsRunInOrderOnACopy) {
  SamplingOptions o;
  o.processing.biases = {{2, 6.0f}, {2, 2.0f}};  // 0 + 8
  o.processing.banned = {3};
  o.processing.penalties.repetition = 4.0f;  // 8 / 4 = 2; before the bias it would be 8
  o.processing.penalties.presence = 1.0f;    // 1
  Sampler sampler(o);
  const std::vector<float> row = {1, 3, 0, 50};
  EXPECT_EQ(sampler.Pick(row, 0, std::vector<int32_t>{2})->id, 1);
  EXPECT_EQ(sampler.Pick(row, 1, {})->id, 2);
  EXPECT_EQ(sampler.Pick(row, 2, std::vector<int32_t>{1, 2, 2})->id, 0);  // 0.25 - 1, 1 - 1
  EXPECT_EQ(row, (std::vector<float>{1, 3, 0, 50}));
}

// With everything sorted, by the words of the paper.
std::vector<int32_t> TypicalSet(const std::vector<double>& p, double share) {
  double entropy = 0;
  for (const double one : p) entropy -= one * std::log(one);
  std::vector<int32_t> ids(p.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    const auto away = [&](int32_t id) {
      return std::abs(entropy + std::log(p[static_cast<size_t>(id)]));
    };
    return away(a) < away(b);
  });
  double sum = 0;
  size_t count = 0;
  while (count < ids.size() && sum < share) sum += p[static_cast<size_t>(ids[count++])];
  ids.resize(count);
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(Sampler, TypicalKeepsTheTokensNearTheEntropy) {
  // The likeliest is left out: it says less than the others do on average.
  const std::vector<double> p = {0.4, 0.13, 0.11, 0.1, 0.09, 0.08, 0.05, 0.04};
  std::vector<float> row;
  for (const double one : p) row.push_back(static_cast<float>(std::log(one)));
  for (const float share : {0.2f, 0.35f, 0.5f, 0.95f}) {
    SamplingOptions o;
    o.temperature = 1.0f;
    o.typical_p = share;
    Sampler sampler(o);
    std::vector<bool> seen(p.size());
    for (uint64_t draw = 0; draw < 4000; ++draw) {
      seen[static_cast<size_t>(sampler.Pick(row, draw)->id)] = true;
    }
    const std::vector<int32_t> want = TypicalSet(p, static_cast<double>(share));
    for (size_t i = 0; i < p.size(); ++i) {
      const bool wanted = std::count(want.begin(), want.end(), static_cast<int32_t>(i)) > 0;
      EXPECT_EQ(seen[i], wanted) << "share " << share << " token " << i;
    }
    EXPECT_FALSE(share == 0.2f && seen[0]);
  }
}

}  // namespace
}  // namespace mk
