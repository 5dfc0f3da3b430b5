// What must not matter, does not, to the last bit: the rest of the batch, the number of workers,
// where a prompt is cut, what ran in between, and whether a sequence is a copy.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "tests/reference/random_k3.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

SequenceOptions Sequential() {
  SequenceOptions options;
  options.chunked_prefill = false;
  return options;
}

SequenceOptions Expanded() {
  SequenceOptions options;
  options.expanded_kv = true;
  return options;
}

// "k3b" is a recorded model, "awkward" a random one whose dimensions fit no vector.
class Invariance : public testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  Invariance()
      : precision_(std::get<1>(GetParam())),
        model_(test::Load(ModelPath(), precision_)),
        executor_(MakeExecutor(2)) {}

  static std::string ModelPath() {
    const std::string name = std::get<0>(GetParam());
    if (name != "awkward") return std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/model.bin";
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("invariance_" + std::to_string(::getpid()) + ".bin"))
                                 .string();
    if (!std::filesystem::exists(path)) {
      reference::WriteRandomK3(path, reference::AwkwardConfig(), reference::ExpertKind::kMixed, 5);
    }
    return path;
  }
  static void TearDownTestSuite() {
    std::filesystem::remove(std::filesystem::temp_directory_path() /
                            ("invariance_" + std::to_string(::getpid()) + ".bin"));
  }

  std::vector<int32_t> Tokens(size_t count, uint32_t seed) const {
    return RandomTokens(count, model_->info().vocab, seed);
  }
  std::unique_ptr<Sequence> Make(SequenceOptions options = {}) const {
    options.precision = precision_;
    return MakeSequence(*model_, options);
  }
  std::vector<float> Run(Sequence& sequence, std::span<const int32_t> tokens) {
    return Feed(*model_, *executor_, sequence, tokens);
  }
  std::vector<float> RunAlone(std::span<const int32_t> tokens,
                              const SequenceOptions& options = {}) {
    return Run(*Make(options), tokens);
  }

  const Precision precision_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Executor> executor_;
};

TEST_P(Invariance, WorkersDoNotMatter) {
  const std::vector<int32_t> tokens = Tokens(150, 1);
  for (const SequenceOptions& options : {SequenceOptions{}, Sequential(), Expanded()}) {
    const std::unique_ptr<Executor> one = MakeExecutor(1);
    const std::vector<float> alone = Feed(*model_, *one, *Make(options), tokens);
    for (const size_t threads : {2, 8}) {
      const std::unique_ptr<Executor> many = MakeExecutor(threads);
      EXPECT_TRUE(SameBits(Feed(*model_, *many, *Make(options), tokens), alone)) << threads;
    }
  }
}

TEST_P(Invariance, SequentialPrefillMayBeCutAnywhere) {
  const std::vector<int32_t> tokens = Tokens(70, 2);
  for (const bool expanded : {false, true}) {
    SequenceOptions options = Sequential();
    options.expanded_kv = expanded;
    const std::vector<float> whole = RunAlone(tokens, options);
    for (size_t cut = 1; cut < tokens.size(); ++cut) {
      const std::unique_ptr<Sequence> sequence = Make(options);
      std::vector<float> parts = Run(*sequence, std::span(tokens).first(cut));
      const std::vector<float> rest = Run(*sequence, std::span(tokens).subspan(cut));
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_TRUE(SameBits(parts, whole)) << "cut at " << cut;
    }
    EXPECT_TRUE(SameBits(FeedInSegments(*model_, *executor_, *Make(options), tokens, 1), whole));
    EXPECT_TRUE(SameBits(FeedInSegments(*model_, *executor_, *Make(options), tokens, 7), whole));
  }
}

TEST_P(Invariance, ChunkedPrefillMayBeCutAtMultiplesOfTheBlock) {
  const std::vector<int32_t> tokens = Tokens(290, 3);
  const std::vector<float> whole = RunAlone(tokens);
  for (size_t cut = kPrefillBlock; cut < tokens.size(); cut += kPrefillBlock) {
    const std::unique_ptr<Sequence> sequence = Make();
    std::vector<float> parts = Run(*sequence, std::span(tokens).first(cut));
    const std::vector<float> rest = Run(*sequence, std::span(tokens).subspan(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_TRUE(SameBits(parts, whole)) << "cut at " << cut;
  }
  for (const size_t segment : {kPrefillBlock, 2 * kPrefillBlock}) {
    EXPECT_TRUE(SameBits(FeedInSegments(*model_, *executor_, *Make(), tokens, segment), whole));
  }
}

TEST_P(Invariance, TheTailOfAChunkedPromptMayBeCutAnywhere) {
  const std::vector<int32_t> tokens = Tokens(100, 4);
  const std::vector<float> whole = RunAlone(tokens);
  for (size_t cut = kPrefillBlock + 1; cut < tokens.size(); ++cut) {
    const std::unique_ptr<Sequence> sequence = Make();
    std::vector<float> parts = Run(*sequence, std::span(tokens).first(cut));
    const std::vector<float> rest = Run(*sequence, std::span(tokens).subspan(cut));
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_TRUE(SameBits(parts, whole)) << "cut at " << cut;
  }
}

// Eight sequences at different positions: some decode, some read prompts, some in other modes.
TEST_P(Invariance, GreedyIsIdenticalAloneAndInABatchOfEight) {
  const size_t vocab = model_->info().vocab;
  const SequenceOptions modes[] = {{}, Sequential(), Expanded(), {}};
  const size_t before[] = {0, 5, 63, 64, 70, 128, 1, 17};
  const size_t now[] = {80, 1, 1, 66, 1, 3, 100, 1};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone, together;
  std::vector<ForwardItem> items;
  for (uint32_t i = 0; i < 8; ++i) {
    tokens.push_back(Tokens(now[i], 100 + i));
    const std::vector<int32_t> history = Tokens(before[i], i);
    const std::unique_ptr<Sequence> copy = Make(modes[i % 4]);
    sequences.push_back(Make(modes[i % 4]));
    if (!history.empty()) {
      Run(*copy, history);
      Run(*sequences.back(), history);
    }
    alone.push_back(Run(*copy, tokens.back()));
  }
  for (size_t i = 0; i < 8; ++i) {
    // Odd items want their last row only.
    const bool all = i % 2 == 0;
    if (!all) alone[i].erase(alone[i].begin(), alone[i].end() - static_cast<long>(vocab));
    together.emplace_back(alone[i].size());
    items.push_back({sequences[i].get(), tokens[i], all ? LogitsWanted::kAll : LogitsWanted::kLast,
                     together[i]});
  }
  ASSERT_TRUE(model_->Forward(*executor_, items));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(SameBits(together[i], alone[i])) << "item " << i;
    EXPECT_EQ(sequences[i]->length(), before[i] + now[i]);
  }
  // And they go on alike.
  for (size_t i = 0; i < 8; ++i) {
    const std::unique_ptr<Sequence> copy = Make(modes[i % 4]);
    if (before[i] > 0) Run(*copy, Tokens(before[i], static_cast<uint32_t>(i)));
    Run(*copy, tokens[i]);
    const std::vector<int32_t> next = Tokens(2, 50);
    EXPECT_TRUE(SameBits(Run(*sequences[i], next), Run(*copy, next))) << "item " << i;
  }
}

TEST_P(Invariance, InterleavedSequencesAreStrangers) {
  const std::vector<int32_t> a = Tokens(90, 7), b = Tokens(90, 8);
  const std::vector<float> a_alone = FeedInSegments(*model_, *executor_, *Make(Sequential()), a, 9);
  const std::vector<float> b_alone = FeedInSegments(*model_, *executor_, *Make(Sequential()), b, 9);
  const std::unique_ptr<Sequence> sequence_a = Make(Sequential());
  const std::unique_ptr<Sequence> sequence_b = Make(Sequential());
  std::vector<float> a_mixed, b_mixed;
  for (size_t t = 0; t < 90; t += 9) {
    const std::vector<float> from_a = Run(*sequence_a, std::span(a).subspan(t, 9));
    const std::vector<float> from_b = Run(*sequence_b, std::span(b).subspan(t, 9));
    a_mixed.insert(a_mixed.end(), from_a.begin(), from_a.end());
    b_mixed.insert(b_mixed.end(), from_b.begin(), from_b.end());
  }
  EXPECT_TRUE(SameBits(a_mixed, a_alone));
  EXPECT_TRUE(SameBits(b_mixed, b_alone));
}

TEST_P(Invariance, AClonedSequenceContinuesEquallyAndApart) {
  for (const SequenceOptions& options : {SequenceOptions{}, Expanded()}) {
    for (const size_t length : {1, 63, 64, 100}) {
      const std::vector<int32_t> prompt = Tokens(length, 9);
      const std::vector<int32_t> left = Tokens(70, 10), right = Tokens(70, 11);
      const std::unique_ptr<Sequence> original = Make(options);
      Run(*original, prompt);
      Result<std::unique_ptr<Sequence>> clone = original->Clone();
      ASSERT_TRUE(clone);
      EXPECT_EQ((*clone)->length(), length);
      // The two branches advance in turn; each must be what it would have been alone.
      std::vector<float> from_left, from_right;
      for (size_t t = 0; t < left.size(); t += 10) {
        const std::vector<float> l = Run(*original, std::span(left).subspan(t, 10));
        const std::vector<float> r = Run(**clone, std::span(right).subspan(t, 10));
        from_left.insert(from_left.end(), l.begin(), l.end());
        from_right.insert(from_right.end(), r.begin(), r.end());
      }
      for (const auto& [branch, got] : {std::pair(left, from_left), std::pair(right, from_right)}) {
        const std::unique_ptr<Sequence> alone = Make(options);
        Run(*alone, prompt);
        EXPECT_TRUE(SameBits(FeedInSegments(*model_, *executor_, *alone, branch, 10), got))
            << "after " << length;
      }
    }
  }
}

TEST_P(Invariance, LogitsOfTheLastTokenAreTheLastOfAll) {
  const std::vector<int32_t> tokens = Tokens(20, 12);
  const std::vector<float> all = RunAlone(tokens);
  const size_t vocab = model_->info().vocab;
  std::vector<float> last(vocab);
  const std::unique_ptr<Sequence> sequence = Make();
  ForwardItem item{sequence.get(), tokens, LogitsWanted::kLast, last};
  ASSERT_TRUE(model_->Forward(*executor_, {&item, 1}));
  EXPECT_TRUE(SameBits(last, {all.end() - static_cast<long>(vocab), all.end()}));
}

TEST_P(Invariance, AnObserverChangesNothing) {
  const std::vector<int32_t> tokens = Tokens(30, 13);
  ForwardObserver observer;
  EXPECT_TRUE(SameBits(Feed(*model_, *executor_, *Make(), tokens, &observer), RunAlone(tokens)));
}

TEST_P(Invariance, ScratchStopsGrowing) {
  const std::unique_ptr<Sequence> sequence = Make();
  Run(*sequence, Tokens(64, 14));
  Run(*sequence, Tokens(64, 15));
  const size_t capacity = executor_->scratch().capacity();
  for (uint32_t i = 0; i < 5; ++i) Run(*sequence, Tokens(64, 16 + i));
  EXPECT_EQ(executor_->scratch().capacity(), capacity);
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         testing::Combine(testing::Values("k3b", "k3c", "awkward"),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)));

// Two ways to compute the same function: close, not equal. Random models this narrow amplify
// rounding: two f32 forwards with different orders of summation differ by up to 4e-5 of the span of
// the logits (tests/reference), which is about twice the largest one.
constexpr double kRounding = 8e-5;

class Closeness : public Invariance {
 protected:
  // Largest difference of two runs by the largest logit.
  double Relative(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      most = std::max<double>(most, std::abs(a[i] - b[i]));
      largest = std::max<double>(largest, std::abs(b[i]));
    }
    return most / largest;
  }
};

TEST_P(Closeness, LatentAndExpandedCachesAgree) {
  const std::vector<int32_t> tokens = Tokens(200, 20);
  EXPECT_LE(Relative(RunAlone(tokens, Expanded()), RunAlone(tokens)), kRounding);
}

TEST_P(Closeness, ChunksAndStepsAgree) {
  for (const size_t length : {1, 15, 16, 63, 64, 65, 128, 300}) {
    const std::vector<int32_t> tokens = Tokens(length, 21);
    const double difference = Relative(RunAlone(tokens), RunAlone(tokens, Sequential()));
    EXPECT_LE(difference, kRounding) << length;
    if (length < kPrefillBlock) {
      EXPECT_EQ(difference, 0) << length;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Closeness,
                         testing::Combine(testing::Values("k3a", "k3b", "k3c", "awkward"),
                                          testing::Values(Precision::kExact)));

}  // namespace
}  // namespace mk::test
