// The engine against the f64 reference on random models with awkward dimensions, every expert
// encoding, both readings of A_log, both L2 conventions, sequential and chunked.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"
#include "tests/reference/k3_reference.h"
#include "tests/reference/random_k3.h"

namespace mk::reference {
namespace {

struct Variant {
  const char* name;
  ExpertKind kind;
  uint64_t seed;
  const char* log_decay;  // kda_a_log
  const char* l2;         // kda_l2
  bool chunked;
  bool expanded;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

class TemporaryModel {
 public:
  TemporaryModel(const nlohmann::json& config, ExpertKind kind, uint64_t seed)
      : path_(std::filesystem::temp_directory_path() /
              ("mk-parity-" + std::to_string(getpid()) + "-" + std::to_string(seed) + ".bin")) {
    WriteRandomK3(path_.string(), config, kind, seed);
  }
  ~TemporaryModel() { std::filesystem::remove(path_); }
  TemporaryModel(const TemporaryModel&) = delete;
  TemporaryModel& operator=(const TemporaryModel&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Copies what the observer shows of one sequence.
class Recorder : public ForwardObserver {
 public:
  Recorder(size_t layers, size_t width) : layers_(layers), width_(width) {}

  void OnHidden(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    const size_t count = rows.size() / width_;
    for (size_t t = 0; t < count; ++t) {
      const auto row = rows.subspan(t * width_, width_);
      At(hidden, position + t)[layer].assign(row.begin(), row.end());
    }
  }
  void OnRouter(size_t, size_t position, size_t layer, std::span<const int32_t> picks,
                std::span<const float> row) override {
    At(experts, position)[layer].assign(picks.begin(), picks.end());
    At(weights, position)[layer].assign(row.begin(), row.end());
  }

  std::vector<std::vector<std::vector<float>>> hidden;     // [position][layer][width]
  std::vector<std::vector<std::vector<int32_t>>> experts;  // [position][layer][top_k]
  std::vector<std::vector<std::vector<float>>> weights;    // [position][layer][top_k]

 private:
  template <typename T>
  std::vector<T>& At(std::vector<std::vector<T>>& rows, size_t position) {
    while (rows.size() <= position) rows.emplace_back(layers_);
    return rows[position];
  }

  size_t layers_;
  size_t width_;
};

class K3Parity : public testing::TestWithParam<Variant> {};

constexpr size_t kTokens = 203;
// Random models this narrow amplify rounding at single positions. A plain f32 forward with its sums
// in index order leaves the f64 logits by 5e-6 of their span at the median position, 1.6e-5 at the
// 95th of 100 and 4e-5 at the worst, and hidden values by up to 9e-4; so much is granted here.
constexpr double kMedianTolerance = 5e-6;
constexpr double kLogitTolerance = 1.6e-5;
constexpr double kWorstTolerance = 5e-5;
constexpr double kHiddenTolerance = 1e-3;  // of values up to 20
constexpr double kWeightTolerance = 5e-5;
// Two selection keys closer than this may trade places in f32.
constexpr double kRouterGap = 1e-5;

TEST_P(K3Parity, LogitsHiddenStatesAndRouterPicksAgree) {
  const Variant& variant = GetParam();
  nlohmann::json config = AwkwardConfig();
  config["kda_a_log"] = variant.log_decay;
  config["kda_l2"] = variant.l2;
  const TemporaryModel file(config, variant.kind, variant.seed);
  K3Reference reference(ParseMkim(file.path()));

  auto model = LoadModel(file.path(), {});
  ASSERT_TRUE(model) << model.error().ToString();
  const ModelInfo& info = (*model)->info();
  SequenceOptions options;
  options.chunked_prefill = variant.chunked;
  options.expanded_kv = variant.expanded;
  auto sequence = (*model)->NewSequence(options);
  ASSERT_TRUE(sequence) << sequence.error().ToString();

  std::mt19937 random(7);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % info.vocab);
  std::vector<float> logits(kTokens * info.vocab);
  Recorder recorder(info.layers, info.hidden);
  auto executor = Executor::Create(2);
  ASSERT_TRUE(executor) << executor.error().ToString();
  ForwardItem item{sequence->get(), tokens, LogitsWanted::kAll, logits};
  const Status status = (*model)->Forward(**executor, std::span(&item, 1), &recorder);
  ASSERT_TRUE(status) << status.error().ToString();

  std::vector<double> errors;
  for (size_t t = 0; t < kTokens; ++t) {
    const TokenTrace trace = reference.Feed(tokens[t]);
    for (size_t l = 0; l < info.layers; ++l) {
      if (trace.router_gap[l] < kRouterGap) continue;
      const auto& picks = recorder.experts[t][l];
      EXPECT_EQ(std::set<int>(picks.begin(), picks.end()),
                std::set<int>(trace.experts[l].begin(), trace.experts[l].end()))
          << "position " << t << " layer " << l;
      for (size_t slot = 0; slot < picks.size(); ++slot) {
        const auto at = std::find(trace.experts[l].begin(), trace.experts[l].end(), picks[slot]);
        if (at == trace.experts[l].end()) continue;
        const double expected =
            trace.weights[l][static_cast<size_t>(at - trace.experts[l].begin())];
        EXPECT_NEAR(recorder.weights[t][l][slot], expected, kWeightTolerance);
      }
    }
    for (size_t l = 0; l < info.layers; ++l) {
      for (size_t i = 0; i < info.hidden; ++i) {
        ASSERT_NEAR(recorder.hidden[t][l][i], trace.hidden[l][i], kHiddenTolerance)
            << "position " << t << " layer " << l << " channel " << i;
      }
    }
    const auto [low, high] = std::minmax_element(trace.logits.begin(), trace.logits.end());
    const double span = *high - *low;
    double worst = 0;
    for (size_t i = 0; i < info.vocab; ++i) {
      worst = std::max(worst, std::abs(logits[t * info.vocab + i] - trace.logits[i]) / span);
    }
    errors.push_back(worst);
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LT(errors[kTokens / 2], kMedianTolerance);
  EXPECT_LT(errors[kTokens * 95 / 100], kLogitTolerance);
  EXPECT_LT(errors.back(), kWorstTolerance);
  std::printf("|logit - f64| / span: median %.1e, 95th of 100 %.1e, worst %.1e (%s)\n",
              errors[kTokens / 2], errors[kTokens * 95 / 100], errors.back(), variant.name);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, K3Parity,
    testing::Values(
        Variant{"mxfp4_head_sequential", ExpertKind::kMxfp4, 1, "head", "max1e-12", false, false},
        Variant{"mxfp4_channel_chunked", ExpertKind::kMxfp4, 2, "channel", "max1e-12", true, false},
        Variant{"mxfp4sq_head_chunked_sum", ExpertKind::kMxfp4Sq, 3, "head", "sum1e-6", true,
                false},
        Variant{"vq1_channel_sequential", ExpertKind::kVq1, 4, "channel", "max1e-12", false, false},
        Variant{"f32_head_chunked_expanded", ExpertKind::kF32, 5, "head", "max1e-12", true, true},
        Variant{"mixed_head_chunked", ExpertKind::kMixed, 6, "head", "max1e-12", true, false}),
    [](const testing::TestParamInfo<Variant>& variant) { return std::string(variant.param.name); });

// On models of ordinary conditioning every logit is within 1e-5 of the span.
class K3ParityRecorded : public testing::TestWithParam<std::string> {};

TEST_P(K3ParityRecorded, EveryLogitIsWithinOneHundredThousandthOfTheSpan) {
  const std::string path = std::string(MK_TEST_DATA) + "/golden/k3/" + GetParam() + "/model.bin";
  K3Reference reference(ParseMkim(path));
  auto model = LoadModel(path, {});
  ASSERT_TRUE(model) << model.error().ToString();
  auto sequence = (*model)->NewSequence({});
  auto executor = Executor::Create(2);
  ASSERT_TRUE(sequence && executor);
  const size_t vocab = (*model)->info().vocab;
  std::mt19937 random(11);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocab);
  std::vector<float> logits(kTokens * vocab);
  ForwardItem item{sequence->get(), tokens, LogitsWanted::kAll, logits};
  const Status status = (*model)->Forward(**executor, std::span(&item, 1));
  ASSERT_TRUE(status) << status.error().ToString();
  double worst = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    const TokenTrace trace = reference.Feed(tokens[t]);
    const auto [low, high] = std::minmax_element(trace.logits.begin(), trace.logits.end());
    for (size_t i = 0; i < vocab; ++i) {
      worst = std::max(worst, std::abs(logits[t * vocab + i] - trace.logits[i]) / (*high - *low));
    }
  }
  EXPECT_LT(worst, 1e-5);
  std::printf("|logit - f64| / span: worst %.1e (%s)\n", worst, GetParam().c_str());
}

INSTANTIATE_TEST_SUITE_P(Cases, K3ParityRecorded, testing::Values("k3a", "k3b", "k3c"));

}  // namespace
}  // namespace mk::reference
