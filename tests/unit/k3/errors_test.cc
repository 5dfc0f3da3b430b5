// What a caller or a file gets wrong is refused with an error that says so, and what a refused
// forward must not touch stays as it was.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "engine/format/mkim_file.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

const std::string kModel = std::string(MK_TEST_DATA) + "/golden/k3/k3a/model.bin";

class ForwardErrors : public testing::Test {
 protected:
  ForwardErrors()
      : model_(test::Load(kModel)), executor_(MakeExecutor(2)), sequence_(MakeSequence(*model_)) {
    Feed(*model_, *executor_, *sequence_, prompt_);
  }

  // Runs one item and expects it to fail, leaving the sequence as it was.
  void ExpectRefused(ForwardItem item, ErrorCode code, const std::string& text) {
    const Status done = model_->Forward(*executor_, {&item, 1});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, code);
    EXPECT_NE(done.error().ToString().find(text), std::string::npos) << done.error().ToString();
    EXPECT_FALSE(done.error().hint.empty());
    EXPECT_EQ(sequence_->length(), prompt_.size());
    const std::unique_ptr<Sequence> fresh = MakeSequence(*model_);
    Feed(*model_, *executor_, *fresh, prompt_);
    const std::vector<int32_t> next = {5, 6};
    Result<std::unique_ptr<Sequence>> copy = sequence_->Clone();
    ASSERT_TRUE(copy);
    EXPECT_EQ(Feed(*model_, *executor_, **copy, next), Feed(*model_, *executor_, *fresh, next));
  }

  const std::vector<int32_t> prompt_ = {1, 2, 3, 4};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Sequence> sequence_;
};

TEST_F(ForwardErrors, NoTokens) {
  ExpectRefused({sequence_.get(), {}, LogitsWanted::kNone, {}}, ErrorCode::kInvalidArgument,
                "no tokens");
}

TEST_F(ForwardErrors, TokensOutsideTheVocabulary) {
  for (const int32_t bad :
       {-1, static_cast<int32_t>(model_->info().vocab), std::numeric_limits<int32_t>::max()}) {
    const std::vector<int32_t> tokens = {1, bad};
    ExpectRefused({sequence_.get(), tokens, LogitsWanted::kNone, {}}, ErrorCode::kInvalidArgument,
                  "token id " + std::to_string(bad));
  }
}

TEST_F(ForwardErrors, LogitsOfAWrongSize) {
  const std::vector<int32_t> tokens = {1, 2};
  std::vector<float> room(model_->info().vocab * 3);
  ExpectRefused({sequence_.get(), tokens, LogitsWanted::kAll, room}, ErrorCode::kInvalidArgument,
                "logits");
  ExpectRefused({sequence_.get(), tokens, LogitsWanted::kLast, {}}, ErrorCode::kInvalidArgument,
                "logits");
}

TEST_F(ForwardErrors, MoreTokensThanAForwardMayCarry) {
  const std::vector<int32_t> tokens(kMaxForwardTokens + 1, 1);
  ExpectRefused({sequence_.get(), tokens, LogitsWanted::kNone, {}}, ErrorCode::kInvalidArgument,
                "more than 512 tokens");
}

TEST_F(ForwardErrors, TokensBeyondTheLimitOfTheSequence) {
  SequenceOptions options;
  options.max_tokens = prompt_.size() + 1;
  sequence_ = MakeSequence(*model_, options);
  Feed(*model_, *executor_, *sequence_, prompt_);
  const std::vector<int32_t> tokens = {1, 2};
  const Status done = [&] {
    ForwardItem item{sequence_.get(), tokens, LogitsWanted::kNone, {}};
    return model_->Forward(*executor_, {&item, 1});
  }();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kContextOverflow);
  ForwardItem item{sequence_.get(), std::span(tokens).first(1), LogitsWanted::kNone, {}};
  EXPECT_TRUE(model_->Forward(*executor_, {&item, 1}));
}

TEST_F(ForwardErrors, ASequenceOfAnotherModel) {
  const std::shared_ptr<const Model> other = test::Load(kModel);
  const std::unique_ptr<Sequence> foreign = MakeSequence(*other);
  ForwardItem item{foreign.get(), prompt_, LogitsWanted::kNone, {}};
  const Status done = model_->Forward(*executor_, {&item, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  item.sequence = nullptr;
  EXPECT_FALSE(model_->Forward(*executor_, {&item, 1}));
}

TEST_F(ForwardErrors, TheSameSequenceTwice) {
  const std::vector<int32_t> tokens = {1};
  ForwardItem items[] = {{sequence_.get(), tokens, LogitsWanted::kNone, {}},
                         {sequence_.get(), tokens, LogitsWanted::kNone, {}}};
  const Status done = model_->Forward(*executor_, items);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence_->length(), prompt_.size());
}

TEST_F(ForwardErrors, AnEmptyBatchIsNothing) {
  EXPECT_TRUE(model_->Forward(*executor_, {}));
}

TEST_F(ForwardErrors, ASequenceForNoTokens) {
  SequenceOptions options;
  options.max_tokens = 0;
  const auto sequence = model_->NewSequence(options);
  ASSERT_FALSE(sequence);
  EXPECT_EQ(sequence.error().code, ErrorCode::kInvalidArgument);
}

// A value of the file that is not finite is found at the layer where it does its harm.
struct Poison {
  const char* tensor;
  const char* message;
};

class Numeric : public testing::TestWithParam<Poison> {};

TEST_P(Numeric, NonFiniteValuesAreReportedWithTheirLayer) {
  const ScratchModel file(kModel);
  file.PatchFloat(GetParam().tensor, 7, std::numeric_limits<float>::quiet_NaN());
  const std::shared_ptr<const Model> model = test::Load(file.path());
  const std::unique_ptr<Executor> executor = MakeExecutor(2);
  const std::unique_ptr<Sequence> sequence = MakeSequence(*model);
  const std::vector<int32_t> tokens = {0, 1, 2, 3};
  std::vector<float> logits(model->info().vocab);
  ForwardItem item{sequence.get(), tokens, LogitsWanted::kLast, logits};
  const Status done = model->Forward(*executor, {&item, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(done.error().message, GetParam().message);
  // The sequence is of no use any more, and says so.
  EXPECT_FALSE(model->Forward(*executor, {&item, 1}));
  EXPECT_FALSE(sequence->Clone());
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, Numeric,
    testing::Values(
        Poison{"embed_tokens.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.0.self_attn.o_proj.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.0.mlp.down_proj.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.1.self_attn.k_proj.weight", "non-finite hidden state, layer 1"},
        Poison{"layers.1.block_sparse_moe.gate.weight", "non-finite router logits, layer 1"},
        Poison{"layers.2.block_sparse_moe.routed_expert_up_proj.weight",
               "non-finite hidden state, layer 2"},
        Poison{"layers.3.self_attn.kv_b_proj.weight", "non-finite hidden state, layer 3"},
        Poison{"layers.3.block_sparse_moe.shared_experts.down_proj.weight",
               "non-finite hidden state, layer 3"},
        Poison{"lm_head.weight", "non-finite logits"}));

TEST(LoadErrors, NoSuchFile) {
  const auto model = LoadModel("/nowhere/model.bin", {});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kNotFound);
}

TEST(LoadErrors, OverTheMemoryLimit) {
  const uint64_t needed = test::Load(kModel)->resident_bytes();
  LoadOptions options;
  uint64_t asked = 0;
  options.admit = [&](uint64_t bytes) -> Status {
    asked = bytes;
    return Fail(ErrorCode::kOutOfMemory, "no room");
  };
  const auto model = LoadModel(kModel, options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(asked, needed);
  options.admit = [](uint64_t) { return Status(); };
  EXPECT_TRUE(LoadModel(kModel, options));
}

TEST(LoadErrors, CancelledByTheCaller) {
  LoadOptions options;
  int calls = 0;
  options.progress = [&](double) { return ++calls < 3; };
  const auto model = LoadModel(kModel, options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 3);
}

TEST(LoadErrors, ScaleByteThatStandsForNoNumber) {
  const ScratchModel file(kModel);
  const uint8_t bad[] = {255};
  // Scales follow 32 * 32 / 2 bytes of nibbles.
  file.Patch("layers.2.block_sparse_moe.experts.3.w2", 32 * 32 / 2 + 5, bad);
  const auto model = LoadModel(file.path(), {});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(model.error().message.find("layers.2.block_sparse_moe.experts.3.w2"),
            std::string::npos);
}

TEST(Load, ProgressRisesToOne) {
  for (const int threads : {1, 2}) {
    LoadOptions options;
    options.threads = threads;
    std::vector<double> seen;
    options.progress = [&](double share) {
      seen.push_back(share);
      return true;
    };
    ASSERT_TRUE(LoadModel(kModel, options));
    ASSERT_FALSE(seen.empty());
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    EXPECT_GE(seen.front(), 0);
    EXPECT_EQ(seen.back(), 1);
  }
}

TEST(Load, InfoDescribesTheModel) {
  const std::shared_ptr<const Model> model = test::Load(kModel);
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.architecture, "k3");
  EXPECT_EQ(info.fingerprint.size(), 32);
  EXPECT_EQ(info.layers, 4);
  EXPECT_EQ(info.hidden, 64);
  EXPECT_EQ(info.vocab, 256);
  EXPECT_EQ(info.experts, 8);
  EXPECT_EQ(info.top_k, 2);
  EXPECT_EQ(info.bos, 248);
  EXPECT_EQ(info.end_of_msg, 253);
  // Three KDA layers: three windows of 3 x 64 and two matrices of 32 x 32; one MLA layer of 48.
  EXPECT_EQ(info.state_bytes, 3 * 4 * (9 * 64 + 2 * 32 * 32));
  EXPECT_EQ(info.bytes_per_token, 4 * 48);
  EXPECT_GT(info.parameters, 0);
  EXPECT_GT(info.file_bytes, 0);
  EXPECT_GT(model->resident_bytes(), 0);
}

TEST(Load, StateGrowsByPages) {
  const std::shared_ptr<const Model> model = test::Load(kModel);
  const std::unique_ptr<Executor> executor = MakeExecutor(1);
  const std::unique_ptr<Sequence> sequence = MakeSequence(*model);
  const size_t empty = sequence->state_bytes();
  EXPECT_GE(empty, model->info().state_bytes);
  const std::vector<int32_t> tokens(64, 1);
  Feed(*model, *executor, *sequence, tokens);
  EXPECT_EQ(sequence->state_bytes(), empty + 64 * model->info().bytes_per_token);
  Feed(*model, *executor, *sequence, std::span(tokens).first(1));
  EXPECT_EQ(sequence->state_bytes(), empty + 128 * model->info().bytes_per_token);
}

}  // namespace
}  // namespace mk::test
