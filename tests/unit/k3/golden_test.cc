// The engine against recorded runs of an independent engine.
//
// Recorded values come from f32 arithmetic in another order; the largest differences of a correct
// f32 engine are about 7e-5 on logits (up to 11 in size) and 5e-5 on hidden states (up to 19).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/model/golden_data.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

constexpr double kLogitTolerance = 1e-4;
constexpr double kHiddenTolerance = 1e-4;

// Keeps everything that a forward of one item reports.
class Recorder : public ForwardObserver {
 public:
  Recorder(const GoldenCase& golden, size_t positions)
      : golden_(golden),
        attention(positions * golden.layers * golden.hidden),
        feed_forward(attention),
        hidden(attention) {}

  void OnAttention(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, rows, attention);
  }
  void OnFeedForward(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, rows, feed_forward);
  }
  void OnHidden(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, rows, hidden);
  }
  void OnRouter(size_t, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override {
    picks[{position, layer}] = {{experts.begin(), experts.end()}, {weights.begin(), weights.end()}};
  }

 private:
  void Keep(size_t position, size_t layer, std::span<const float> rows, std::vector<float>& out) {
    for (size_t t = 0; t < rows.size() / golden_.hidden; ++t) {
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(t * golden_.hidden), golden_.hidden,
                  out.begin() + static_cast<std::ptrdiff_t>(
                                    ((position + t) * golden_.layers + layer) * golden_.hidden));
    }
  }
  const GoldenCase& golden_;

 public:
  std::vector<float> attention, feed_forward, hidden;  // [position][layer][hidden]
  std::map<std::pair<size_t, size_t>, RouterPick> picks;
};

struct Mode {
  const char* name;
  SequenceOptions options;
};

std::vector<Mode> Modes() {
  Mode sequential{"sequential", {}};
  sequential.options.chunked_prefill = false;
  Mode expanded{"expanded", {}};
  expanded.options.expanded_kv = true;
  return {{"chunked", {}}, sequential, expanded};
}

class Golden : public testing::TestWithParam<std::tuple<const char*, size_t>> {
 protected:
  Golden()
      : golden_(LoadGolden("k3", std::get<0>(GetParam()))),
        mode_(Modes()[std::get<1>(GetParam())]),
        model_(Load(golden_.model_path)),
        executor_(MakeExecutor(2)),
        sequence_(MakeSequence(*model_, mode_.options)) {}

  // Reads the prompt in one forward, then continues greedily token by token. Checks every choice
  // and returns the logits of the rows that were recorded.
  std::vector<float> Run(const GoldenPrompt& prompt) {
    std::vector<float> logits = Feed(*model_, *executor_, *sequence_, prompt.ids);
    const size_t vocab = golden_.vocab;
    for (const int32_t expected : prompt.greedy) {
      const int32_t chosen = ArgMax({logits.data() + logits.size() - vocab, vocab});
      EXPECT_EQ(chosen, expected) << "after " << sequence_->length() << " tokens";
      const std::vector<float> row = Feed(*model_, *executor_, *sequence_, {&expected, 1});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    logits.erase(logits.begin(), logits.end() - static_cast<std::ptrdiff_t>(prompt.logits.size()));
    return logits;
  }

  void ExpectClose(const char* what, const std::vector<float>& got,
                   const std::vector<float>& expected, double tolerance) {
    const double difference = MaxDifference(got, expected);
    std::printf("%s %-10s %-14s max difference %.2e\n", golden_.name.c_str(), mode_.name, what,
                difference);
    EXPECT_LE(difference, tolerance) << what;
  }

  const GoldenCase golden_;
  const Mode mode_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Sequence> sequence_;
};

TEST_P(Golden, ShortPromptAndGreedyContinuationMatch) {
  ExpectClose("short.logits", Run(golden_.short_prompt), golden_.short_prompt.logits,
              kLogitTolerance);
}

TEST_P(Golden, LongPromptAndGreedyContinuationMatch) {
  ASSERT_GT(golden_.long_prompt.ids.size(), kPrefillBlock) << "no chunk would be tested";
  ExpectClose("long.logits", Run(golden_.long_prompt), golden_.long_prompt.logits, kLogitTolerance);
}

TEST_P(Golden, EveryLayerMatches) {
  Recorder recorder(golden_, golden_.short_prompt.ids.size());
  Feed(*model_, *executor_, *sequence_, golden_.short_prompt.ids, &recorder);
  ExpectClose("short.attn", recorder.attention, golden_.attention, kHiddenTolerance);
  ExpectClose("short.ffn", recorder.feed_forward, golden_.feed_forward, kHiddenTolerance);
  ExpectClose("short.hidden", recorder.hidden, golden_.hidden_states, kHiddenTolerance);
}

TEST_P(Golden, RouterPicksMatch) {
  const GoldenPrompt& prompt = golden_.short_prompt;
  std::vector<int32_t> tokens = prompt.ids;
  tokens.insert(tokens.end(), prompt.greedy.begin(), prompt.greedy.end());
  ASSERT_EQ(prompt.router.size(), tokens.size());
  Recorder recorder(golden_, tokens.size());
  Feed(*model_, *executor_, *sequence_, tokens, &recorder);
  double worst = 0;
  for (size_t position = 0; position < prompt.router.size(); ++position) {
    for (size_t layer = 0; layer < golden_.layers; ++layer) {
      const RouterPick& expected = prompt.router[position][layer];
      const auto found = recorder.picks.find({position, layer});
      ASSERT_EQ(found == recorder.picks.end(), expected.experts.empty());
      if (expected.experts.empty()) continue;
      const RouterPick& got = found->second;
      ASSERT_EQ(got.experts.size(), expected.experts.size());
      // As a set: two keys that nearly tie may come in either order.
      std::map<int32_t, float> weights;
      for (size_t i = 0; i < got.experts.size(); ++i) weights[got.experts[i]] = got.weights[i];
      for (size_t i = 0; i < expected.experts.size(); ++i) {
        const auto weight = weights.find(expected.experts[i]);
        ASSERT_NE(weight, weights.end()) << "position " << position << " layer " << layer;
        worst = std::max<double>(worst, std::fabs(weight->second - expected.weights[i]));
      }
    }
  }
  EXPECT_LE(worst, 5e-6);
}

std::string CaseName(const testing::TestParamInfo<Golden::ParamType>& test) {
  return std::string(std::get<0>(test.param)) + "_" + Modes()[std::get<1>(test.param)].name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         testing::Combine(testing::ValuesIn(kK3Cases),
                                          testing::Range<size_t>(0, 3)),
                         CaseName);

}  // namespace
}  // namespace mk::test
