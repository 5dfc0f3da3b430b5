// What a caller or a file gets wrong is refused with an error that says so.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/format/mkim_file.h"
#include "tests/reference/random_dsv4.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/dsv4/golden_model.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

// Ratios 0, 0, 4, 8, 4, hash layers 0 and 1.
const GoldenModel& Made() {
  static const GoldenModel model("d1");
  return model;
}

struct Poison {
  const char* tensor;
  const char* message;
};

class Dsv4Numeric : public testing::TestWithParam<Poison> {};

TEST_P(Dsv4Numeric, NonFiniteValuesAreReportedWithTheirLayer) {
  const ScratchModel file(Made().path());
  file.PatchFloat(GetParam().tensor, 7, std::numeric_limits<float>::quiet_NaN());
  const auto model = Load(file.path());
  const auto executor = MakeExecutor(2);
  const auto sequence = MakeSequence(*model);
  std::vector<int32_t> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  std::vector<float> logits(model->info().vocab);
  ForwardItem item{sequence.get(), tokens, LogitsWanted::kLast, logits};
  const Status done = model->Forward(*executor, {&item, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(done.error().message, GetParam().message);
  // The sequence is of no use any more, and says so.
  EXPECT_FALSE(model->Forward(*executor, {&item, 1}));
  EXPECT_FALSE(sequence->Clone());
  EXPECT_FALSE(sequence->Rewind(0));
}

INSTANTIATE_TEST_SUITE_P(
    Tensors, Dsv4Numeric,
    testing::Values(
        Poison{"embed.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.0.attn.wkv.weight", "non-finite key, layer 0"},
        Poison{"layers.0.attn.wq_a.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.0.attn.wo_a.weight", "non-finite hidden state, layer 0"},
        Poison{"layers.0.ffn.gate.weight", "non-finite router logits, layer 0"},
        Poison{"layers.1.ffn.shared_experts.w2.weight", "non-finite hidden state, layer 1"},
        Poison{"layers.2.attn.compressor.wkv.weight", "non-finite compressed row, layer 2"},
        Poison{"layers.2.attn.compressor.wgate.weight", "non-finite compressed row, layer 2"},
        Poison{"layers.2.attn.indexer.compressor.wkv.weight", "non-finite compressed row, layer 2"},
        Poison{"layers.2.attn.indexer.wq_b.weight", "non-finite index query, layer 2"},
        Poison{"layers.2.attn.indexer.weights_proj.weight", "non-finite index score, layer 2"},
        Poison{"layers.3.attn.compressor.wkv.weight", "non-finite compressed row, layer 3"},
        Poison{"layers.4.ffn.gate.weight", "non-finite router logits, layer 4"},
        Poison{"layers.4.ffn.shared_experts.w2.weight", "non-finite hidden state, layer 4"},
        Poison{"head.weight", "non-finite logits"}));

// A value of a vector that is not finite is found when the file is opened.
TEST(Dsv4Census, VectorsAreFinite) {
  for (const char* tensor :
       {"norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale", "layers.3.hc_attn_fn",
        "layers.3.hc_ffn_base", "layers.3.hc_ffn_scale", "layers.2.attn.attn_sink",
        "layers.2.attn.compressor.ape", "layers.4.attn.indexer.compressor.norm.weight",
        "layers.2.ffn.gate.bias"}) {
    const ScratchModel file(Made().path());
    file.PatchFloat(tensor, 0, std::numeric_limits<float>::infinity());
    const auto model = LoadModel(file.path(), {});
    ASSERT_FALSE(model) << tensor;
    EXPECT_EQ(model.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(model.error().message.find(tensor), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find("not finite"), std::string::npos);
  }
}

TEST(Dsv4Census, HashTablesNameExpertsThatExist) {
  for (const int32_t bad : {-1, 8}) {
    const ScratchModel file(Made().path());
    uint8_t bytes[4];
    std::memcpy(bytes, &bad, 4);
    file.Patch("layers.1.ffn.gate.tid2eid", 4 * 11, bytes);
    const auto model = LoadModel(file.path(), {});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(model.error().message.find("layers.1.ffn.gate.tid2eid"), std::string::npos);
    EXPECT_NE(model.error().message.find(std::to_string(bad) + " at index 11"), std::string::npos)
        << model.error().message;
  }
}

TEST(Dsv4Census, ExpertsHaveScalesThatAreNumbers) {
  const ScratchModel file(Made().path());
  const uint8_t bad[] = {255};
  // Scales follow 64 * 32 / 2 bytes of nibbles.
  file.Patch("layers.2.ffn.experts.3.w2", 64 * 32 / 2 + 5, bad);
  const auto model = LoadModel(file.path(), {});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(model.error().message.find("layers.2.ffn.experts.3.w2"), std::string::npos);
}

TEST(Dsv4Errors, SequencesOfAnotherArchitecture) {
  const auto dsv4 = Load(Made().path());
  const auto k3 = Load(LoadGolden("k3", "k3a").model_path);
  const auto executor = MakeExecutor(1);
  const auto ours = MakeSequence(*dsv4);
  const auto theirs = MakeSequence(*k3);
  const std::vector<int32_t> tokens = {1};
  for (const auto& [model, sequence] :
       {std::pair(dsv4.get(), theirs.get()), std::pair(k3.get(), ours.get())}) {
    ForwardItem item{sequence, tokens, LogitsWanted::kNone, {}};
    const Status done = model->Forward(*executor, {&item, 1});
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(done.error().message.find("another model"), std::string::npos);
  }
  // The state of K3 only goes forward.
  Feed(*k3, *executor, *theirs, tokens);
  EXPECT_EQ(theirs->rewindable(), 0u);
  EXPECT_TRUE(theirs->Rewind(1));
  EXPECT_FALSE(theirs->Rewind(0));
}

TEST(Dsv4Errors, TheConfigMayLimitTheContext) {
  GoldenCase golden = LoadGolden("dsv4", "d3");
  golden.config["ds"]["max_seq_len"] = 30;
  const TempDirectory directory;
  reference::WriteRandomDsv4(directory.Path("m.bin"), golden.config, 1);
  const auto model = Load(directory.Path("m.bin"));
  const auto executor = MakeExecutor(1);
  const auto sequence = MakeSequence(*model);
  const std::vector<int32_t> tokens = RandomTokens(31, model->info().vocab, 1);
  Feed(*model, *executor, *sequence, std::span(tokens).first(30));
  ForwardItem item{sequence.get(), std::span(tokens).last(1), LogitsWanted::kNone, {}};
  const Status done = model->Forward(*executor, {&item, 1});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kContextOverflow);
  SequenceOptions options;
  options.max_tokens = 10;
  EXPECT_EQ(MakeSequence(*model, options)->length(), 0u);
}

TEST(Dsv4Load, OverTheMemoryLimit) {
  const uint64_t needed = Load(Made().path())->resident_bytes();
  LoadOptions options;
  uint64_t asked = 0;
  options.admit = [&](uint64_t bytes) -> Status {
    asked = bytes;
    return Fail(ErrorCode::kOutOfMemory, "no room");
  };
  const auto model = LoadModel(Made().path(), options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(asked, needed);
  options.admit = [](uint64_t) { return Status(); };
  EXPECT_TRUE(LoadModel(Made().path(), options));
}

TEST(Dsv4Load, InfoDescribesTheModel) {
  const auto model = Load(Made().path());
  const ModelInfo& info = model->info();
  EXPECT_EQ(info.architecture, "deepseek_v4");
  EXPECT_EQ(info.layers, 5u);
  EXPECT_EQ(info.hidden, 64u);
  EXPECT_EQ(info.streams, 4u);
  EXPECT_EQ(info.vocab, 264u);
  EXPECT_EQ(info.experts, 8u);
  EXPECT_EQ(info.top_k, 2u);
  EXPECT_EQ(info.bos, 256);
  EXPECT_EQ(info.end_of_msg, 257);
  EXPECT_GT(info.parameters, 0u);
  // A kept row: 16 codes, an exponent, 3 bytes of padding, 16 floats. Five rings of 16 + 16 rows;
  // compressors keep 8 + 16 tokens of 2 x (2 x 32) floats and 2 x 64 beside them, or 8 + 16 of 2 x
  // 32.
  const size_t row = 16 + 1 + 3 + 64;
  EXPECT_EQ(info.state_bytes, 5 * 32 * row + 2 * 24 * (128 + 128) * 4 + 24 * 64 * 4);
}

TEST(Dsv4Load, StateGrowsByPages) {
  const auto model = Load(Made().path());
  const auto executor = MakeExecutor(1);
  const auto sequence = MakeSequence(*model);
  const ModelInfo& info = model->info();
  EXPECT_EQ(sequence->state_bytes(), info.state_bytes);
  const std::vector<int32_t> tokens = RandomTokens(512, info.vocab, 1);
  Feed(*model, *executor, *sequence, std::span(tokens).first(3));
  EXPECT_EQ(sequence->state_bytes(), info.state_bytes);
  // 64 rows of 84 bytes, and 64 keys of 32 bytes and a scale, in two layers of ratio 4.
  const size_t indexed = 2 * (64 * 84 + 64 * 36);
  Feed(*model, *executor, *sequence, std::span(tokens).first(1));
  EXPECT_EQ(sequence->state_bytes(), info.state_bytes + indexed);
  Feed(*model, *executor, *sequence, std::span(tokens).first(4));
  const size_t plain = 64 * 84;
  EXPECT_EQ(sequence->state_bytes(), info.state_bytes + indexed + plain);
  // After 512 tokens both have full pages.
  Feed(*model, *executor, *sequence, std::span(tokens).first(504));
  EXPECT_EQ(sequence->state_bytes(), info.state_bytes + 2 * indexed + plain);
  EXPECT_LE(sequence->state_bytes(), info.state_bytes + 512 * info.bytes_per_token);
}

}  // namespace
}  // namespace mk::test
