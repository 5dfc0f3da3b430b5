// The logit lens: what leaves a model by it is what the model says, to the last bit, and layers
// before the last go the same way.

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "tests/unit/model/random_model.h"

namespace mk::test {
namespace {

// Rows of one item: what leaves the model, and the streams after every layer.
class Watcher : public ForwardObserver {
 public:
  Watcher(size_t streams, size_t layers) : streams_(streams), hidden(layers) {}
  void OnHidden(size_t, size_t, size_t layer, std::span<const float> rows) override {
    hidden[layer].assign(rows.begin(), rows.end());
    if (streams_ > 1 && layer + 1 == hidden.size()) exit = hidden[layer];
  }
  bool WantsOutput(size_t) const override { return true; }
  void OnOutput(size_t, size_t position, std::span<const float> rows) override {
    output_position = position;
    output.assign(rows.begin(), rows.end());
    if (streams_ == 1) exit = output;
  }

 private:
  const size_t streams_;

 public:
  std::vector<std::vector<float>> hidden;
  std::vector<float> output;
  std::vector<float> exit;
  size_t output_position = 0;
};

// To each item its own watcher.
class Watchers : public ForwardObserver {
 public:
  explicit Watchers(std::vector<Watcher*> all) : all_(std::move(all)) {}
  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float> rows) override {
    if (all_[item] != nullptr) all_[item]->OnHidden(0, position, layer, rows);
  }
  bool WantsOutput(size_t item) const override { return all_[item] != nullptr; }
  void OnOutput(size_t item, size_t position, std::span<const float> rows) override {
    ASSERT_NE(all_[item], nullptr) << "nobody wanted item " << item;
    all_[item]->OnOutput(0, position, rows);
  }

 private:
  std::vector<Watcher*> all_;
};

std::vector<float> Look(const Model& model, Executor& executor, Precision precision,
                        std::span<const float> streams) {
  std::vector<float> logits;
  size_t next = 0;
  const Status done = model.Lens(executor, precision, streams, [&](size_t row, auto values) {
    EXPECT_EQ(row, next++);
    logits.insert(logits.end(), values.begin(), values.end());
  });
  EXPECT_TRUE(done) << done.error().ToString();
  return logits;
}

class Lens : public testing::TestWithParam<std::tuple<Kind, Precision>> {
 protected:
  Lens() : precision_(std::get<1>(GetParam())), model_(std::get<0>(GetParam()), precision_) {}

  std::unique_ptr<Sequence> Make() const {
    SequenceOptions options;
    options.precision = precision_;
    return MakeSequence(*model_, options);
  }
  Watcher MakeWatcher() const { return {model_->info().streams, model_->info().layers}; }

  const Precision precision_;
  const RandomModel model_;
};

TEST_P(Lens, TheLastRowIsWhatTheModelSays) {
  const auto tokens = RandomTokens(70, model_->info().vocab, 3);
  for (const size_t threads : {1, 2, 5}) {
    const auto executor = MakeExecutor(threads);
    Watcher watcher = MakeWatcher();
    const auto logits = Feed(*model_, *executor, *Make(), tokens, &watcher);
    EXPECT_EQ(watcher.output.size(), tokens.size() * model_->info().hidden);
    EXPECT_TRUE(SameBits(Look(*model_, *executor, precision_, watcher.exit), logits)) << threads;
  }
}

TEST_P(Lens, TheLastRowIsWhatTheModelSaysInBatches) {
  const auto executor = MakeExecutor(2);
  const size_t vocab = model_->info().vocab;
  const std::vector<size_t> lengths = {1, 9, 3};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> logits;
  std::vector<ForwardItem> items;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back(Make());
    const auto before = RandomTokens(4 + i, vocab, 50 + static_cast<uint32_t>(i));
    Feed(*model_, *executor, *sequences.back(), before);
    tokens.push_back(RandomTokens(lengths[i], vocab, 7 + static_cast<uint32_t>(i)));
    logits.emplace_back(vocab);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    items.push_back({sequences[i].get(), tokens[i], LogitsWanted::kLast, logits[i]});
  }
  Watcher first = MakeWatcher();
  Watcher third = MakeWatcher();
  Watchers watchers({&first, nullptr, &third});
  ASSERT_TRUE(model_->Forward(*executor, items, &watchers));
  EXPECT_EQ(third.output_position, 6u);
  const auto last_row = [](const Watcher& watcher, size_t rows) {
    const size_t width = watcher.exit.size() / rows;
    return std::span<const float>(watcher.exit).last(width);
  };
  EXPECT_TRUE(SameBits(Look(*model_, *executor, precision_, last_row(first, 1)), logits[0]));
  EXPECT_TRUE(SameBits(Look(*model_, *executor, precision_, last_row(third, 3)), logits[2]));
}

// However many rows go through the head at once, beyond what it takes at a time, too.
TEST_P(Lens, RowsDoNotDependOnEachOther) {
  const auto tokens = RandomTokens(41, model_->info().vocab, 4);
  const auto executor = MakeExecutor(2);
  Watcher watcher = MakeWatcher();
  Feed(*model_, *executor, *Make(), tokens, &watcher);
  for (const std::vector<float>& streams : watcher.hidden) {
    const auto all = Look(*model_, *executor, precision_, streams);
    const size_t width = streams.size() / tokens.size();
    for (const size_t row : {size_t{0}, size_t{31}, size_t{32}, tokens.size() - 1}) {
      const auto one =
          Look(*model_, *executor, precision_, std::span(streams).subspan(row * width, width));
      const size_t vocab = one.size();
      EXPECT_TRUE(SameBits(one, std::span(all).subspan(row * vocab, vocab))) << row;
    }
  }
}

// To be looked at changes nothing.
TEST_P(Lens, WatchingDoesNotChangeWhatIsSaid) {
  const auto tokens = RandomTokens(12, model_->info().vocab, 6);
  const auto executor = MakeExecutor(2);
  Watcher watcher = MakeWatcher();
  const auto sequence = Make();
  const auto plain = Make();
  const auto watched = Feed(*model_, *executor, *sequence, tokens, &watcher);
  EXPECT_TRUE(SameBits(watched, Feed(*model_, *executor, *plain, tokens)));
  Look(*model_, *executor, precision_, watcher.exit);
  const auto more = RandomTokens(3, model_->info().vocab, 8);
  EXPECT_TRUE(
      SameBits(Feed(*model_, *executor, *sequence, more), Feed(*model_, *executor, *plain, more)));
}

TEST_P(Lens, ErrorsAreTold) {
  const auto executor = MakeExecutor(1);
  const size_t width = model_->info().streams * model_->info().hidden;
  const std::vector<float> streams(width + 1, 0.5f);
  const LensSink never = [](size_t, std::span<const float>) { ADD_FAILURE(); };
  const auto wrong_size = model_->Lens(*executor, precision_, streams, never);
  ASSERT_FALSE(wrong_size);
  EXPECT_EQ(wrong_size.error().code, ErrorCode::kInvalidArgument);
  const Precision other = precision_ == Precision::kQ8 ? Precision::kBf16 : Precision::kQ8;
  const auto unprepared = model_->Lens(*executor, other, std::span(streams).first(width), never);
  ASSERT_FALSE(unprepared);
  EXPECT_EQ(unprepared.error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(model_->Lens(*executor, precision_, {}, never));
}

TEST_P(Lens, EveryLayerHasItsKind) {
  const ModelInfo& info = model_->info();
  ASSERT_EQ(info.layer_kinds.size(), info.layers);
  const std::vector<std::string> known = info.streams == 1
                                             ? std::vector<std::string>{"KDA", "MLA"}
                                             : std::vector<std::string>{"SWA", "CSA", "HCA"};
  for (const std::string& kind : info.layer_kinds) {
    EXPECT_NE(std::find(known.begin(), known.end(), kind), known.end()) << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Lens,
                         testing::Combine(testing::Values(Kind::kK3, Kind::kDsv4),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)));

}  // namespace
}  // namespace mk::test
