// The engine against the f64 reference on random models: every dimension different, every kind of
// layer, windows that wrap, an indexer that has to choose.
//
// Values are rounded to FP8 and FP4 on the way. One that lies within an f32 error of a boundary may
// be rounded to the other side, and everything after it moves by a step of the format, so the seeds
// of the rounding variants are ones where none does: the reference tells how near the nearest came.
// The variants without rounding hold for any seed.

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
#include "tests/reference/dsv4_reference.h"
#include "tests/reference/random_dsv4.h"

namespace mk::reference {
namespace {

// Ratios, window and number of picks of the published model, cut down in width: 300 positions fill
// the window, wrap it, close two groups of 128 and leave the indexer 20 of 75 rows.
nlohmann::ordered_json ProductLikeConfig() {
  nlohmann::ordered_json config = AwkwardDsv4Config();
  config["ds"].update({{"hidden", 64},
                       {"n_heads", 4},
                       {"head_dim", 80},
                       {"qk_rope_head_dim", 16},
                       {"q_lora_rank", 32},
                       {"o_lora_rank", 16},
                       {"o_groups", 2},
                       {"sliding_window", 128},
                       {"compress_ratios", {0, 0, 4, 128, 4, 128}},
                       {"rope_theta", 10000},
                       {"compress_rope_theta", 160000},
                       {"index_n_heads", 4},
                       {"index_head_dim", 32},
                       {"index_topk", 20},
                       {"n_routed_experts", 8},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 32},
                       {"num_hash_layers", 1},
                       {"swiglu_limit", 1.5},
                       {"hc_sinkhorn_iters", 20}});
  return config;
}

struct Variant {
  const char* name;
  bool product_like;
  uint64_t seed;
  nlohmann::ordered_json changes;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

// Copies what the observer shows of one sequence.
class Recorder : public ForwardObserver {
 public:
  Recorder(size_t positions, size_t layers, size_t width)
      : hidden(positions, std::vector<std::vector<float>>(layers)),
        experts(positions, std::vector<std::vector<int32_t>>(layers)),
        weights(hidden),
        rows(experts),
        width_(width) {}

  void OnHidden(size_t, size_t position, size_t layer, std::span<const float> values) override {
    for (size_t t = 0; t < values.size() / width_; ++t) {
      const auto row = values.subspan(t * width_, width_);
      hidden[position + t][layer].assign(row.begin(), row.end());
    }
  }
  void OnRouter(size_t, size_t position, size_t layer, std::span<const int32_t> picks,
                std::span<const float> row) override {
    experts[position][layer].assign(picks.begin(), picks.end());
    weights[position][layer].assign(row.begin(), row.end());
  }
  void OnIndexer(size_t, size_t position, size_t layer, std::span<const int32_t> picks,
                 std::span<const float>) override {
    rows[position][layer].assign(picks.begin(), picks.end());
  }

  std::vector<std::vector<std::vector<float>>> hidden;     // [position][layer][width]
  std::vector<std::vector<std::vector<int32_t>>> experts;  // [position][layer][top_k]
  std::vector<std::vector<std::vector<float>>> weights;
  std::vector<std::vector<std::vector<int32_t>>> rows;  // [position][layer], indexed layers

 private:
  const size_t width_;
};

double Largest(const Vector& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

class Dsv4Parity : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    nlohmann::ordered_json config =
        GetParam().product_like ? ProductLikeConfig() : AwkwardDsv4Config();
    config["ds"].update(GetParam().changes);
    const auto path = std::filesystem::temp_directory_path() /
                      ("mk-dsv4-parity-" + std::to_string(getpid()) + ".bin");
    WriteRandomDsv4(path.string(), config, GetParam().seed, {.outputs = 0.3});
    reference_ = std::make_unique<Dsv4Reference>(ParseMkim(path.string()));
    auto model = LoadModel(path.string(), {});
    std::filesystem::remove(path);
    ASSERT_TRUE(model) << model.error().ToString();
    model_ = *model;
  }

  std::unique_ptr<Dsv4Reference> reference_;
  std::shared_ptr<const Model> model_;
};

constexpr size_t kTokens = 300;
constexpr double kTolerance = 1e-5;  // of logits by their span, of hidden states by their largest
constexpr double kWeightTolerance = 1e-5;

TEST_P(Dsv4Parity, LogitsHiddenStatesAndSelectionsAgree) {
  const ModelInfo& info = model_->info();
  auto sequence = model_->NewSequence({});
  auto executor = Executor::Create(2);
  ASSERT_TRUE(sequence && executor);
  std::mt19937 random(7);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % info.vocab);
  std::vector<float> logits(kTokens * info.vocab);
  Recorder recorder(kTokens, info.layers, info.hidden * info.streams);
  ForwardItem item{sequence->get(), tokens, LogitsWanted::kAll, logits};
  const Status status = (*model_).Forward(**executor, std::span(&item, 1), &recorder);
  ASSERT_TRUE(status) << status.error().ToString();

  double worst_logit = 0, worst_hidden = 0, margin = 1, router_gap = 1e9, index_gap = 1e9;
  size_t choices = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    const Dsv4Trace trace = reference_->Feed(tokens[t]);
    margin = std::min(margin, trace.rounding_margin);
    for (size_t l = 0; l < info.layers; ++l) {
      SCOPED_TRACE("position " + std::to_string(t) + " layer " + std::to_string(l));
      router_gap = std::min(router_gap, trace.router_gap[l]);
      index_gap = std::min(index_gap, trace.index_gap[l]);
      EXPECT_EQ(recorder.experts[t][l], trace.experts[l]);
      if (!recorder.rows[t][l].empty()) {
        EXPECT_EQ(recorder.rows[t][l], trace.rows[l]);
        choices += recorder.rows[t][l].size() < (t + 1) / 4 ? 1 : 0;
      }
      for (size_t i = 0; i < trace.weights[l].size(); ++i) {
        EXPECT_NEAR(recorder.weights[t][l][i], trace.weights[l][i], kWeightTolerance);
      }
      const double largest = Largest(trace.hidden[l]);
      for (size_t i = 0; i < trace.hidden[l].size(); ++i) {
        worst_hidden = std::max(worst_hidden,
                                std::abs(recorder.hidden[t][l][i] - trace.hidden[l][i]) / largest);
      }
    }
    const auto [low, high] = std::minmax_element(trace.logits.begin(), trace.logits.end());
    for (size_t i = 0; i < info.vocab; ++i) {
      const double difference = std::abs(logits[t * info.vocab + i] - trace.logits[i]);
      worst_logit = std::max(worst_logit, difference / (*high - *low));
    }
  }
  EXPECT_LT(worst_logit, kTolerance);
  EXPECT_LT(worst_hidden, kTolerance);
  EXPECT_GT(choices, 300u);  // positions at which an indexer had to choose
  std::printf(
      "%s: logits %.1e of span, hidden %.1e; nearest rounding boundary %.1e of the block, router "
      "gap %.1e, index gap %.1e\n",
      GetParam().name, worst_logit, worst_hidden, margin, router_gap, index_gap);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Dsv4Parity,
    testing::Values(Variant{"product", true, 1, nlohmann::ordered_json::object()},
                    Variant{"awkward", false, 12, nlohmann::ordered_json::object()},
                    Variant{"product_unrounded", true, 2, {{"act_qat", false}}},
                    Variant{"awkward_unrounded", false, 3, {{"act_qat", false}}},
                    Variant{"three_streams_no_limit",
                            false,
                            2,
                            {{"hc_mult", 3}, {"swiglu_limit", 0}, {"hc_sinkhorn_iters", 1}}}),
    [](const testing::TestParamInfo<Variant>& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace mk::reference
