// The engine against recorded runs of an independent engine.
//
// Recorded values come from f32 arithmetic in another order; f64 accumulation moves their logits by
// up to 2e-5. Values that are rounded to FP8 or FP4 may fall to the other side of a boundary, but
// none does here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/dsv4/golden_model.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

constexpr double kLogitTolerance = 1e-5;   // of the span of a row of logits
constexpr double kHiddenTolerance = 1e-5;  // of the largest value of a row

// Keeps everything that a forward of one item reports.
class Recorder : public ForwardObserver {
 public:
  Recorder(const GoldenCase& golden, size_t positions)
      : golden_(golden),
        attention(positions * golden.layers * golden.hidden),
        feed_forward(attention),
        hidden(positions * golden.layers * golden.hidden * golden.streams) {}

  void OnAttention(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, golden_.hidden, rows, attention);
  }
  void OnFeedForward(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, golden_.hidden, rows, feed_forward);
  }
  void OnHidden(size_t, size_t position, size_t layer, std::span<const float> rows) override {
    Keep(position, layer, golden_.hidden * golden_.streams, rows, hidden);
  }
  void OnRouter(size_t, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override {
    picks[{position, layer}] = {{experts.begin(), experts.end()}, {weights.begin(), weights.end()}};
  }
  void OnIndexer(size_t, size_t position, size_t layer, std::span<const int32_t> rows,
                 std::span<const float>) override {
    indexed[{position, layer}] = {rows.begin(), rows.end()};
  }

 private:
  void Keep(size_t position, size_t layer, size_t width, std::span<const float> rows,
            std::vector<float>& out) {
    for (size_t t = 0; t < rows.size() / width; ++t) {
      const size_t to = ((position + t) * golden_.layers + layer) * width;
      if (to + width > out.size()) return;
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(t * width), width,
                  out.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
  const GoldenCase& golden_;

 public:
  std::vector<float> attention, feed_forward;  // [position][layer][hidden]
  std::vector<float> hidden;                   // [position][layer][streams][hidden]
  std::map<std::pair<size_t, size_t>, RouterPick> picks;
  std::map<std::pair<size_t, size_t>, std::vector<int32_t>> indexed;
};

// The largest difference in rows of `width`, each relative to the row's largest recorded value.
double RelativeDifference(const std::vector<float>& ours, const std::vector<float>& recorded,
                          size_t width) {
  EXPECT_EQ(ours.size(), recorded.size());
  double worst = 0;
  for (size_t at = 0; at + width <= recorded.size(); at += width) {
    double most = 0, largest = 0;
    for (size_t i = at; i < at + width; ++i) {
      most = std::max(most, std::fabs(double{ours[i]} - double{recorded[i]}));
      largest = std::max(largest, std::fabs(double{recorded[i]}));
    }
    worst = std::max(worst, most / largest);
  }
  return worst;
}

// The largest difference in rows of logits, each relative to the row's span.
double SpanDifference(std::span<const float> ours, std::span<const float> recorded, size_t vocab) {
  EXPECT_EQ(ours.size(), recorded.size());
  double worst = 0;
  for (size_t at = 0; at + vocab <= recorded.size(); at += vocab) {
    const auto row = recorded.subspan(at, vocab);
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    for (size_t i = 0; i < vocab; ++i) {
      const double difference = std::fabs(double{ours[at + i]} - double{row[i]});
      worst = std::max(worst, difference / (double{*high} - double{*low}));
    }
  }
  return worst;
}

class Dsv4Golden : public testing::TestWithParam<const char*> {
 protected:
  Dsv4Golden()
      : made_(GetParam()),
        golden_(made_.golden()),
        model_(Load(made_.path())),
        executor_(MakeExecutor(2)) {}

  // The prompt in one pass, then its continuation token by token: the recorded rows of logits, and
  // the greedy choice at each of them.
  std::vector<float> Run(const GoldenPrompt& prompt, ForwardObserver* observer) {
    const auto sequence = MakeSequence(*model_);
    std::vector<float> rows = Feed(*model_, *executor_, *sequence, prompt.ids, observer);
    for (const int32_t token : prompt.greedy) {
      const std::span<const float> last = std::span(rows).last(golden_.vocab);
      EXPECT_EQ(ArgMax(last), token) << "after " << sequence->length() << " tokens";
      const std::vector<float> next = Feed(*model_, *executor_, *sequence, {{token}}, observer);
      rows.insert(rows.end(), next.begin(), next.end());
    }
    return {rows.end() - static_cast<std::ptrdiff_t>(prompt.logits.size()), rows.end()};
  }

  const GoldenModel made_;
  const GoldenCase& golden_;
  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<Executor> executor_;
};

TEST_P(Dsv4Golden, ShortPromptAndItsContinuation) {
  const GoldenPrompt& prompt = golden_.short_prompt;
  Recorder recorder(golden_, prompt.ids.size());
  const std::vector<float> logits = Run(prompt, &recorder);
  const double worst_logit = SpanDifference(logits, prompt.logits, golden_.vocab);
  EXPECT_LT(worst_logit, kLogitTolerance);
  const double hidden =
      RelativeDifference(recorder.hidden, golden_.hidden_states, golden_.hidden * golden_.streams);
  const double attention =
      RelativeDifference(recorder.attention, golden_.attention, golden_.hidden);
  const double feed_forward =
      RelativeDifference(recorder.feed_forward, golden_.feed_forward, golden_.hidden);
  EXPECT_LT(hidden, kHiddenTolerance);
  EXPECT_LT(attention, kHiddenTolerance);
  EXPECT_LT(feed_forward, kHiddenTolerance);
  for (size_t t = 0; t < prompt.router.size(); ++t) {
    for (size_t l = 0; l < golden_.layers; ++l) {
      const RouterPick& pick = recorder.picks.at({t, l});
      const RouterPick& recorded = prompt.router[t][l];
      EXPECT_EQ(pick.experts, recorded.experts) << "position " << t << " layer " << l;
      for (size_t i = 0; i < recorded.weights.size(); ++i) {
        EXPECT_NEAR(pick.weights[i], recorded.weights[i], 2e-6);
      }
    }
  }
  std::printf("%s: logits %.1e of span, hidden %.1e, attention %.1e, feed-forward %.1e\n",
              GetParam(), worst_logit, hidden, attention, feed_forward);
}

TEST_P(Dsv4Golden, LongPromptAndItsContinuation) {
  const GoldenPrompt& prompt = golden_.long_prompt;
  Recorder recorder(golden_, prompt.ids.size());
  const std::vector<float> logits = Run(prompt, &recorder);
  const double worst = SpanDifference(logits, prompt.logits, golden_.vocab);
  EXPECT_LT(worst, kLogitTolerance);
  std::printf("%s: logits %.1e of span\n", GetParam(), worst);
  // What the last position of the prompt attends to, beside its window.
  const size_t last = prompt.ids.size() - 1;
  const int32_t window = golden_.config.at("ds").at("sliding_window");
  for (size_t l = 0; l < golden_.layers; ++l) {
    std::set<int32_t> recorded;
    for (const int32_t slot : golden_.attended.at(l)) {
      if (slot >= window) recorded.insert(slot - window);
    }
    const auto picks = recorder.indexed.find({last, l});
    if (picks == recorder.indexed.end()) continue;
    EXPECT_EQ(std::set<int32_t>(picks->second.begin(), picks->second.end()), recorded)
        << "layer " << l;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Dsv4Golden, testing::ValuesIn(kDsv4Cases),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace mk::test
