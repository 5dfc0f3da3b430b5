// DeepSeek-V4 models made offline.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/build/build_model.h"
#include "engine/build/generator.h"
#include "engine/format/verify.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"
#include "tests/unit/base/temp_directory.h"

namespace mk {
namespace {

class BuildDsv4 : public testing::Test {
 protected:
  BuildOptions Preset(const std::string& preset) const {
    BuildOptions options;
    options.arch = "dsv4";
    options.preset = preset;
    options.path = directory_.Path("model.bin");
    options.force = true;
    return options;
  }
  std::shared_ptr<const MkimFile> Build(const BuildOptions& options) const {
    const auto report = BuildModel(options);
    EXPECT_TRUE(report.has_value()) << report.error().ToString();
    auto file = MkimFile::Open(options.path);
    EXPECT_TRUE(file.has_value()) << file.error().ToString();
    return file.value_or(nullptr);
  }

  const test::TempDirectory directory_;
};

std::string Blob(const MkimFile& file, const std::string& name) {
  const TensorEntry* entry = file.FindTensor(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return "";
  std::string bytes(entry->size, '\0');
  EXPECT_TRUE(file.ReadBlob(*entry, std::as_writable_bytes(std::span(bytes))).has_value());
  return bytes;
}

template <typename T>
std::vector<T> First(const std::string& blob, size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), blob.data(), count * sizeof(T));
  return values;
}

TEST_F(BuildDsv4, TensorsOfTheTinyModelMatchRecordedOnes) {
  const auto file = Build(Preset("tiny"));
  ASSERT_NE(file, nullptr);
  EXPECT_TRUE(file->warnings().empty()) << file->warnings()[0];
  const std::string embed = Blob(*file, "embed.weight");
  EXPECT_EQ(Fnv1a64(embed), 0x6e430e071a6c7aabu);
  EXPECT_EQ(First<float>(embed, 3),
            (std::vector<float>{-0.106376715f, -0.104103819f, 1.51871586f}));
  const std::string base = Blob(*file, "layers.0.hc_attn_base");
  EXPECT_EQ(Fnv1a64(base), 0xaa675e92ee27d790u);
  EXPECT_EQ(First<float>(base, 3), (std::vector<float>{-1.07257724f, -1.45119905f, -1.17632174f}));
  const std::string table = Blob(*file, "layers.0.ffn.gate.tid2eid");
  EXPECT_EQ(Fnv1a64(table), 0xa25a119734a2c3c3u);
  EXPECT_EQ(First<int32_t>(table, 4), (std::vector<int32_t>{8, 4, 7, 1}));
  const std::string w3 = Blob(*file, "layers.2.ffn.experts.3.w3");
  EXPECT_EQ(Fnv1a64(w3), 0x22a82d8dedf55f4fu);
  EXPECT_EQ(w3.substr(0, 8), "\x19\xbd\xc6\x3b\x22\xda\x20\x92");
  EXPECT_EQ(w3.substr(32 * 64 / 2, 4), "\x7b\x7b\x7b\x7b");
}

TEST_F(BuildDsv4, RowsOfSpecialIdsAreZeroInTheHead) {
  const auto file = Build(Preset("tiny"));
  ASSERT_NE(file, nullptr);
  const auto head = First<float>(Blob(*file, "head.weight"), 264 * 64);
  const auto is_zero = [](float value) { return value == 0; };
  for (size_t row = 0; row < 264; ++row) {
    const auto begin = head.begin() + static_cast<ptrdiff_t>(row * 64);
    EXPECT_EQ(std::all_of(begin, begin + 64, is_zero), row >= 256) << row;
  }
  EXPECT_EQ(file->config().specials.bos, 256);
  EXPECT_EQ(file->config().specials.end_of_msg, 261);
  EXPECT_EQ(file->config().tokenizer, "bytes");
}

struct Size {
  const char* preset;
  uint64_t tensors;
  double parameters, file_bytes, expert_bytes, spine_bytes;  // rounded as documented
  double precision;
};

TEST_F(BuildDsv4, PresetsHaveTheirSizes) {
  const Size sizes[] = {{"tiny", 448, 0.90e6, 1.59e6, 0.31e6, 1.25e6, 0.006e6},
                        {"nano", 6360, 222e6, 191.1e6, 107.0e6, 83.8e6, 0.6e6},
                        {"micro", 34223, 2.371e9, 1.989e9, 1.150e9, 0.838e9, 0.0006e9}};
  for (const Size& size : sizes) {
    BuildOptions options = Preset(size.preset);
    options.dry_run = true;
    options.align = ExpertAlign::k64;
    const auto report = BuildModel(options);
    ASSERT_TRUE(report.has_value()) << report.error().ToString();
    EXPECT_EQ(report->tensors, size.tensors);
    EXPECT_NEAR(static_cast<double>(report->parameters), size.parameters, size.precision);
    EXPECT_NEAR(static_cast<double>(report->file_bytes), size.file_bytes, size.precision);
    EXPECT_NEAR(static_cast<double>(report->expert_bytes), size.expert_bytes, size.precision);
    EXPECT_NEAR(static_cast<double>(report->spine_bytes), size.spine_bytes, size.precision);
  }
  for (const std::string& preset : PresetNames("dsv4")) {
    BuildOptions options = Preset(preset);
    options.dry_run = true;
    EXPECT_TRUE(BuildModel(options).has_value()) << preset;
  }
}

TEST_F(BuildDsv4, SameBytesWithAnyNumberOfThreads) {
  // Tensors larger than one unit of work.
  BuildOptions options = Preset("tiny");
  options.seed = 11;
  options.overrides = {{"vocab", "70000"}};
  std::set<std::string> digests;
  for (const int threads : {1, 2, 7}) {
    options.threads = threads;
    const auto file = Build(options);
    ASSERT_NE(file, nullptr);
    digests.insert(std::to_string(Fnv1a64(Blob(*file, "head.weight"))) + " " +
                   std::to_string(Fnv1a64(Blob(*file, "layers.1.ffn.gate.tid2eid"))));
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST_F(BuildDsv4, HashTablesNameDifferentExpertsEvenly) {
  BuildOptions options = Preset("tiny");
  options.overrides = {{"vocab", "4000"}, {"num_experts_per_tok", "5"}};
  const auto file = Build(options);
  ASSERT_NE(file, nullptr);
  const auto table = First<int32_t>(Blob(*file, "layers.1.ffn.gate.tid2eid"), 4000 * 5);
  std::vector<size_t> counts(16), first_counts(16);
  for (size_t row = 0; row < 4000; ++row) {
    std::set<int32_t> experts(table.begin() + static_cast<ptrdiff_t>(5 * row),
                              table.begin() + static_cast<ptrdiff_t>(5 * row + 5));
    EXPECT_EQ(experts.size(), 5u);
    ++first_counts.at(static_cast<size_t>(table[5 * row]));
    for (const int32_t expert : experts) ++counts.at(static_cast<size_t>(expert));
  }
  // 1250 +- 29 and 250 +- 15.
  for (size_t e = 0; e < 16; ++e) {
    EXPECT_NEAR(static_cast<double>(counts[e]), 1250, 150) << e;
    EXPECT_NEAR(static_cast<double>(first_counts[e]), 250, 80) << e;
  }
}

TEST_F(BuildDsv4, ABuiltModelVerifiesAndRuns) {
  const BuildOptions options = Preset("tiny");
  ASSERT_NE(Build(options), nullptr);
  const auto report = VerifyFile(options.path);
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  EXPECT_TRUE(report->ok()) << report->problems[0].message;
  EXPECT_EQ(report->tensors, 448u);
  const auto model = LoadModel(options.path, {});
  ASSERT_TRUE(model.has_value()) << model.error().ToString();
  auto sequence = (*model)->NewSequence({});
  auto executor = Executor::Create(2);
  ASSERT_TRUE(sequence && executor);
  std::vector<int32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 256);
  std::vector<float> logits(tokens.size() * 264);
  ForwardItem item{sequence->get(), tokens, LogitsWanted::kAll, logits};
  ASSERT_TRUE((*model)->Forward(**executor, {&item, 1}));
  // The gain of the head is the deviation of the logits.
  double squares = 0;
  for (const float logit : logits) squares += double{logit} * double{logit};
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(logits.size())), 2.0, 0.15);
}

TEST_F(BuildDsv4, OverridesReachConfigAndTensors) {
  BuildOptions options = Preset("tiny");
  options.overrides = {{"n_layers", "4"},    {"compress_ratios", "[4,0,16,4]"},
                       {"hc_mult", "2"},     {"g_out", "0.25"},
                       {"act_qat", "false"}, {"skew", "0.5"}};
  const auto file = Build(options);
  ASSERT_NE(file, nullptr);
  const MkimConfig& config = file->config();
  EXPECT_EQ(config.n_layers, 4u);
  EXPECT_EQ(config.ds.compress_ratios, (std::vector<uint32_t>{4, 0, 16, 4}));
  EXPECT_FALSE(config.ds.act_qat);
  EXPECT_EQ(file->FindTensor("layers.2.attn.compressor.ape")->shape[0], 16u);
  EXPECT_EQ(file->FindTensor("layers.2.hc_ffn_fn")->shape[0], 8u);
  const auto deviation = [&](const char* name) {
    const TensorEntry* entry = file->FindTensor(name);
    const auto values = First<float>(Blob(*file, name), entry->elements());
    double squares = 0;
    for (const float value : values) squares += double{value} * double{value};
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  EXPECT_NEAR(deviation("layers.1.attn.wo_b.weight"), 0.25 / std::sqrt(32), 0.004);
  EXPECT_NEAR(deviation("layers.1.attn.wkv.weight"), 1 / std::sqrt(64), 0.01);
  EXPECT_NEAR(deviation("layers.2.ffn.gate.bias"), 0.5, 0.25);
  const auto json = nlohmann::json::parse(file->config_json());
  EXPECT_EQ(json["synthetic"]["gains"]["g_out"], 0.25);
  EXPECT_EQ(json["synthetic"]["generator"], "mkgen-1");
}

TEST_F(BuildDsv4, BadOptionsAreRefusedAndNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"hiden", "64"},         {"hidden", "48"},         {"n_heads", "5"},
      {"vocab", "263"},        {"compress_ratios", "4"}, {"compress_ratios", "[1,1]"},
      {"index_topk", "0"},     {"index_head_dim", "33"}, {"num_experts_per_tok", "17"},
      {"g_expert", "0"},       {"skew", "\"much\""},     {"hc_mult", "17"},
      {"num_hash_layers", "7"}};
  for (const auto& [key, value] : cases) {
    BuildOptions options = Preset("tiny");
    options.overrides = {{key, value}};
    const auto report = BuildModel(options);
    ASSERT_FALSE(report.has_value()) << key;
    EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument) << key;
    EXPECT_NE(report.error().message.find(key), std::string::npos) << report.error().ToString();
  }
  BuildOptions options = Preset("giant");
  const auto report = BuildModel(options);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message.find("giant"), std::string::npos);
  EXPECT_EQ(directory_.Files(), 0u);
}

}  // namespace
}  // namespace mk
