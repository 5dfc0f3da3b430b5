#include "engine/build/build_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "engine/base/file.h"
#include "engine/build/generator.h"
#include "engine/format/mxfp4.h"
#include "engine/format/verify.h"

namespace mk {
namespace {

namespace fs = std::filesystem;

class BuildModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(::testing::TempDir()) /
                 ("mk_build_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  BuildOptions Tiny(const std::string& name) const {
    BuildOptions options;
    options.preset = "tiny";
    options.path = Path(name);
    return options;
  }

  static std::string Content(const std::string& path) {
    auto content = ReadWholeFile(path, 1u << 30);
    EXPECT_TRUE(content.has_value());
    return content.value_or("");
  }

  size_t FilesLeft() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

std::string Blob(const MkimFile& file, const std::string& name) {
  const TensorEntry* entry = file.FindTensor(name);
  EXPECT_NE(entry, nullptr) << name;
  if (entry == nullptr) return "";
  std::string bytes(entry->size, '\0');
  EXPECT_TRUE(file.ReadBlob(*entry, std::as_writable_bytes(std::span(bytes))).has_value());
  return bytes;
}

struct Golden {
  const char* tensor;
  uint64_t fnv;             // FNV-1a-64 over the blob
  std::vector<float> head;  // first values of an f32 tensor
};

TEST_F(BuildModelTest, TensorsOfTheTinyModelMatchRecordedOnes) {
  ASSERT_TRUE(BuildModel(Tiny("tiny.bin")).has_value());
  const auto file = MkimFile::Open(Path("tiny.bin"));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_TRUE((*file)->warnings().empty()) << (*file)->warnings()[0];
  const std::vector<Golden> goldens = {
      {"embed_tokens.weight", 0xb09110e3e35100a4u, {-1.26346469f, -0.671507955f, -0.448367953f}},
      {"lm_head.weight", 0x8c6f193dfffd7670u, {0.205557927f, 0.202628553f, -0.0424192846f}},
      {"layers.0.input_layernorm.weight",
       0x74ce51654ad9c4f4u,
       {0.892751098f, 1.17323685f, 0.671778321f}},
      {"layers.0.self_attn.q_proj.weight",
       0xe1d1404098b42f39u,
       {0.0659244135f, 0.0728135705f, -0.167672977f}},
      {"layers.0.self_attn.A_log", 0x14f5974acc342934u, {0, 0.089438349f, 0.178876698f}},
      {"layers.0.self_attn.dt_bias",
       0xf42e8439e0a6a2e4u,
       {-0.701936007f, -0.337826371f, -0.369509459f}},
      {"layers.1.block_sparse_moe.gate.e_score_correction_bias",
       0x1ef6df5e9a810fe7u,
       {-0.0911292955f, 0.0396355651f, -0.159963086f}},
      {"layers.1.block_sparse_moe.experts.0.w1", 0x82b796c07bc42068u, {}},
      {"layers.1.block_sparse_moe.experts.31.w2", 0xcbdd8a2a49446a2du, {}},
  };
  for (const Golden& golden : goldens) {
    const std::string blob = Blob(**file, golden.tensor);
    EXPECT_EQ(Fnv1a64(blob), golden.fnv) << golden.tensor;
    for (size_t i = 0; i < golden.head.size(); ++i) {
      float value = 0;
      std::memcpy(&value, blob.data() + 4 * i, sizeof value);
      EXPECT_EQ(value, golden.head[i]) << golden.tensor << " " << i;
    }
  }
  const std::string w1 = Blob(**file, "layers.1.block_sparse_moe.experts.0.w1");
  EXPECT_EQ(w1.substr(0, 8), "\xa2\x90\xcc\x41\x1d\xa2\x29\x69");
  const size_t scales = 32 * 64 / 2;
  EXPECT_EQ(w1.substr(scales, 4), "\x7b\x7b\x7b\x7a");
  const std::string w2 = Blob(**file, "layers.1.block_sparse_moe.experts.31.w2");
  EXPECT_EQ(w2.substr(0, 8), "\xb9\x4a\x9c\xaa\x91\x41\xae\xc1");
  EXPECT_EQ(w2.substr(scales, 4), "\x7b\x7c\x7b\x7b");
}

TEST_F(BuildModelTest, RowsOfSpecialIdsAreZeroInTheHead) {
  ASSERT_TRUE(BuildModel(Tiny("tiny.bin")).has_value());
  const auto file = MkimFile::Open(Path("tiny.bin"));
  ASSERT_TRUE(file.has_value());
  const TensorEntry* head = (*file)->FindTensor("lm_head.weight");
  std::vector<float> values(head->elements());
  ASSERT_TRUE((*file)->ReadF32(*head, values).has_value());
  const size_t first_special = (264 - 8) * 96;
  EXPECT_TRUE(
      std::all_of(values.begin() + first_special, values.end(), [](float v) { return v == 0; }));
  EXPECT_TRUE(std::any_of(values.begin() + first_special - 96, values.begin() + first_special,
                          [](float v) { return v != 0; }));
  EXPECT_EQ((*file)->config().specials.bos, 256);
  EXPECT_EQ((*file)->config().specials.end_of_msg, 261);
  EXPECT_EQ((*file)->config().tokenizer, "bytes");
}

TEST_F(BuildModelTest, SameBytesWithAnyNumberOfThreads) {
  BuildOptions options = Tiny("one.bin");
  options.seed = 11;
  // Larger than one unit of work, so that a tensor is cut between threads.
  options.overrides = {{"vocab", "30000"}};
  ASSERT_TRUE(BuildModel(options).has_value());
  const std::string one = Content(Path("one.bin"));
  for (const int threads : {2, 16}) {
    options.path = Path("many.bin");
    options.threads = threads;
    options.force = true;
    ASSERT_TRUE(BuildModel(options).has_value());
    EXPECT_EQ(Content(Path("many.bin")), one) << threads;
  }
}

TEST_F(BuildModelTest, AnotherSeedIsAnotherModel) {
  ASSERT_TRUE(BuildModel(Tiny("a.bin")).has_value());
  BuildOptions options = Tiny("b.bin");
  options.seed = 1;
  ASSERT_TRUE(BuildModel(options).has_value());
  const auto a = MkimFile::Open(Path("a.bin"));
  const auto b = MkimFile::Open(Path("b.bin"));
  ASSERT_TRUE(a && b);
  const char* name = "layers.2.block_sparse_moe.experts.3.w3";
  EXPECT_NE(Blob(**a, name), Blob(**b, name));
  EXPECT_NE((*a)->Fingerprint().value(), (*b)->Fingerprint().value());
}

TEST_F(BuildModelTest, DryRunForetellsTheFile) {
  for (const ExpertAlign align : {ExpertAlign::kAuto, ExpertAlign::k64, ExpertAlign::k4096}) {
    BuildOptions options = Tiny("tiny.bin");
    options.align = align;
    options.force = true;
    const auto built = BuildModel(options);
    ASSERT_TRUE(built.has_value());
    options.dry_run = true;
    const auto planned = BuildModel(options);
    ASSERT_TRUE(planned.has_value());
    EXPECT_EQ(planned->file_bytes, fs::file_size(options.path));
    EXPECT_EQ(planned->tensors, built->tensors);
    EXPECT_EQ(planned->expert_bytes, built->expert_bytes);
    const auto file = MkimFile::Open(options.path);
    ASSERT_TRUE(file.has_value());
    for (uint32_t e = 0; e < 32; ++e) {
      const uint64_t step = align == ExpertAlign::k4096 ? 4096 : 64;
      EXPECT_EQ((*file)->Expert(1, e, ExpertPart::kGate)->offset % step, 0u);
      // One record: w2 follows w1, w3 follows w2.
      const TensorEntry* w1 = (*file)->Expert(1, e, ExpertPart::kGate);
      const TensorEntry* w2 = (*file)->Expert(1, e, ExpertPart::kDown);
      EXPECT_EQ(w2->offset, (w1->offset + w1->size + 63) / 64 * 64);
    }
  }
}

struct Size {
  const char* preset;
  uint64_t tensors;
  double parameters, file_bytes, expert_bytes, spine_bytes;  // rounded as documented
  double precision;
};

TEST_F(BuildModelTest, PresetsHaveTheirSizes) {
  const Size sizes[] = {{"tiny", 636, 1.64e6, 3.19e6, 0.52e6, 2.62e6, 0.006e6},
                        {"nano", 19028, 181.6e6, 192.9e6, 81.9e6, 109.7e6, 0.06e6},
                        {"micro", 249756, 2.389e9, 2.547e9, 1.076e9, 1.454e9, 0.0006e9}};
  for (const Size& size : sizes) {
    BuildOptions options;
    options.preset = size.preset;
    options.dry_run = true;
    const auto report = BuildModel(options);
    ASSERT_TRUE(report.has_value()) << report.error().ToString();
    EXPECT_EQ(report->tensors, size.tensors);
    EXPECT_NEAR(static_cast<double>(report->parameters), size.parameters, size.precision);
    EXPECT_NEAR(static_cast<double>(report->file_bytes), size.file_bytes, size.precision);
    EXPECT_NEAR(static_cast<double>(report->expert_bytes), size.expert_bytes, size.precision);
    EXPECT_NEAR(static_cast<double>(report->spine_bytes), size.spine_bytes, size.precision);
  }
  for (const std::string& preset : PresetNames("k3")) {
    BuildOptions options;
    options.preset = preset;
    options.dry_run = true;
    EXPECT_TRUE(BuildModel(options).has_value()) << preset;
  }
}

TEST_F(BuildModelTest, ABuiltModelVerifies) {
  ASSERT_TRUE(BuildModel(Tiny("tiny.bin")).has_value());
  const auto report = VerifyFile(Path("tiny.bin"));
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  EXPECT_TRUE(report->ok()) << report->problems[0].message;
  EXPECT_EQ(report->tensors, 636u);
}

TEST_F(BuildModelTest, OverridesReachConfigAndTensors) {
  BuildOptions options = Tiny("tiny.bin");
  options.overrides = {{"n_layers", "5"},         {"mla_layers", "[]"}, {"dense_layers", "[0,2]"},
                       {"kda_a_log", "\"head\""}, {"skew", "0.5"},      {"kda_heads", "3"},
                       {"attn_res_block", "3"},   {"kda_conv", "3"}};
  const auto report = BuildModel(options);
  ASSERT_TRUE(report.has_value()) << report.error().ToString();
  const auto file = MkimFile::Open(options.path);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const MkimConfig& config = (*file)->config();
  EXPECT_EQ(config.n_layers, 5u);
  EXPECT_EQ(config.CountMla(), 0u);
  EXPECT_TRUE(config.IsDense(0) && config.IsDense(2) && config.CountDense() == 2);
  EXPECT_EQ(config.a_log, ALogReading::kHead);
  EXPECT_EQ((*file)->FindTensor("layers.4.self_attn.A_log")->elements(), 3u);
  EXPECT_EQ((*file)->FindTensor("layers.4.self_attn.q_conv1d.weight")->shape[1], 3u);
  const TensorEntry* bias =
      (*file)->FindTensor("layers.1.block_sparse_moe.gate.e_score_correction_bias");
  std::vector<float> values(bias->elements());
  ASSERT_TRUE((*file)->ReadF32(*bias, values).has_value());
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(values.size())), 0.5, 0.2);
  const auto json = nlohmann::json::parse((*file)->config_json());
  EXPECT_EQ(json["synthetic"]["gains"]["skew"], 0.5);
  EXPECT_EQ(json["synthetic"]["generator"], "mkgen-1");
  EXPECT_EQ(json["synthetic"]["preset"], "tiny");
}

struct BadOption {
  const char* name;
  std::function<void(BuildOptions&)> change;
  const char* message;  // part of it
};

TEST_F(BuildModelTest, BadOptionsAreRefusedAndNamed) {
  const auto set = [](const char* key, const char* value) {
    return [=](BuildOptions& o) { o.overrides = {{key, value}}; };
  };
  const std::vector<BadOption> cases = {
      {"arch", [](BuildOptions& o) { o.arch = "llama"; }, "llama"},
      {"preset", [](BuildOptions& o) { o.preset = "giant"; }, "giant"},
      {"threads", [](BuildOptions& o) { o.threads = 0; }, "threads"},
      {"unknown key", set("hiden", "64"), "hiden"},
      {"not JSON", set("hidden", "6x"), "hidden"},
      {"negative", set("hidden", "-1"), "hidden"},
      {"fraction", set("hidden", "64.5"), "hidden"},
      {"string", set("vocab", "\"many\""), "vocab"},
      {"zero", set("attn_res_block", "0"), "attn_res_block"},
      {"top_k over n_experts", set("top_k", "33"), "top_k"},
      {"small vocab", set("vocab", "263"), "vocab"},
      {"groups of 32", set("moe_inter", "48"), "moe_inter"},
      {"layer list", set("mla_layers", "[7]"), "mla_layers"},
      {"gain too large", set("skew", "1e9"), "skew"},
      {"gain not a number", set("skew", "null"), "skew"},
      {"negative gain", set("g_expert", "-1"), "g_expert"},
  };
  for (const BadOption& bad : cases) {
    BuildOptions options = Tiny("bad.bin");
    bad.change(options);
    const auto report = BuildModel(options);
    ASSERT_FALSE(report.has_value()) << bad.name;
    EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument) << bad.name;
    EXPECT_NE(report.error().message.find(bad.message), std::string::npos)
        << bad.name << ": " << report.error().ToString();
  }
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(BuildModelTest, AnExistingFileIsKeptUnlessForced) {
  { std::ofstream(Path("tiny.bin")) << "precious"; }
  BuildOptions options = Tiny("tiny.bin");
  const auto refused = BuildModel(options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Content(Path("tiny.bin")), "precious");
  options.force = true;
  EXPECT_TRUE(BuildModel(options).has_value());
  EXPECT_GT(fs::file_size(Path("tiny.bin")), 1'000'000u);
}

TEST_F(BuildModelTest, CancellingLeavesNothingBehind) {
  BuildOptions options = Tiny("tiny.bin");
  options.overrides = {{"vocab", "200000"}};
  options.threads = 2;
  int calls = 0;
  const auto report = BuildModel(options, [&calls](double) { return ++calls < 2; });
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(BuildModelTest, ProgressRisesToOne) {
  BuildOptions options = Tiny("tiny.bin");
  options.overrides = {{"vocab", "100000"}};
  options.threads = 3;
  double last = 0;
  ASSERT_TRUE(BuildModel(options, [&last](double fraction) {
                EXPECT_GT(fraction, last);
                last = fraction;
                return true;
              }).has_value());
  EXPECT_EQ(last, 1.0);
}

TEST_F(BuildModelTest, AFullDiskIsSaidBeforeWriting) {
  BuildOptions options = Tiny("huge.bin");
  // 2^24 rows of 2^20 floats: 2 x 64 TiB.
  options.overrides = {{"vocab", "16777216"}, {"hidden", "1048576"}};
  const auto report = BuildModel(options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kIo);
  EXPECT_NE(report.error().hint.find("disk"), std::string::npos);
  EXPECT_EQ(FilesLeft(), 0u);
}

TEST_F(BuildModelTest, AMissingDirectoryIsNamed) {
  BuildOptions options = Tiny("nowhere/tiny.bin");
  const auto report = BuildModel(options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kNotFound);
}

std::vector<size_t> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<size_t> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = i;
  return ranks;
}

// Spearman's correlation of two lists without ties.
double RankCorrelation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto ra = Ranks(a);
  const auto rb = Ranks(b);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(ra[i]) - static_cast<double>(rb[i]);
    sum += d * d;
  }
  const auto n = static_cast<double>(a.size());
  return 1 - 6 * sum / (n * (n * n - 1));
}

TEST_F(BuildModelTest, NormOfAnExpertFollowsItsGain) {
  BuildOptions options;  // nano widths, one MoE layer
  options.preset = "nano";
  options.path = Path("nano.bin");
  options.overrides = {{"n_layers", "2"}, {"vocab", "264"}};
  ASSERT_TRUE(BuildModel(options).has_value());
  const auto file = MkimFile::Open(options.path);
  ASSERT_TRUE(file.has_value());
  std::vector<double> gains;
  std::vector<double> norms;
  for (uint32_t e = 0; e < 896; ++e) {
    const std::string prefix = "layers.1.block_sparse_moe.experts." + std::to_string(e) + ".";
    gains.push_back(static_cast<double>(HashStream(0, prefix + "gain").At(0) >> 11));
    double squares = 0;
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp}) {
      const TensorEntry* entry = (*file)->Expert(1, e, part);
      std::vector<std::byte> blob(entry->size);
      std::vector<float> values(entry->elements());
      ASSERT_TRUE((*file)->ReadBlob(*entry, blob).has_value());
      ASSERT_TRUE(DecodeMxfp4(blob, entry->shape[0], entry->shape[1], values).has_value());
      squares += std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
    }
    norms.push_back(squares);
  }
  EXPECT_GT(RankCorrelation(gains, norms), 0.95);
}

}  // namespace
}  // namespace mk
