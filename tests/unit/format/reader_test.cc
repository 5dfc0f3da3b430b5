#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/format/k3_census.h"
#include "engine/format/mkim_file.h"
#include "engine/format/mxfp4.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

bool Mentions(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

// The bytes of a 4113 byte file with two tensors, written out in full.
std::string WorkedExample() {
  std::string file("MKIM0002\x19\0\0\0{\"hidden\":2,\"n_layers\":1}\x02\0\0\0", 41);
  file += std::string("\x0b\0norm.weight\0\x01\x02\0\0\0", 19);
  file += std::string("\xc0\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0", 16);
  file +=
      std::string("\x26\0layers.0.block_sparse_moe.experts.0.w1\x01\x02\x01\0\0\0\x20\0\0\0", 50);
  file += std::string("\0\x10\0\0\0\0\0\0\x11\0\0\0\0\0\0\0", 16);
  EXPECT_EQ(file.size(), 142u);
  file.resize(192, '\0');
  file += std::string("\0\0\x80\x3f\0\0\0\xbf", 8);
  file.resize(4096, '\0');
  const std::string codes("\x10\x32\x54\x76\x98\xba\xdc\xfe", 8);
  file += codes + codes + "\x7e";
  return file;
}

TEST(Reader, WorkedExample) {
  const TempDirectory directory;
  const std::string path = directory.Write("example.bin", WorkedExample());
  OpenOptions options;
  options.checks = OpenOptions::Checks::kContainer;
  // The default special ids do not depend on hidden and n_layers.
  const auto file = MkimFile::Open(path, options);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ((*file)->version(), 2);
  EXPECT_EQ((*file)->data_start(), 142u);
  EXPECT_EQ((*file)->config_json(), "{\"hidden\":2,\"n_layers\":1}");
  EXPECT_EQ((*file)->config().hidden, 2u);
  EXPECT_EQ((*file)->config().n_layers, 1u);
  EXPECT_EQ((*file)->config().n_experts, 896u);
  EXPECT_TRUE(Mentions((*file)->warnings(), "top_k = 16"));
  const TensorEntry* norm = (*file)->FindTensor("norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->offset, 192u);
  std::vector<float> values(2);
  ASSERT_TRUE((*file)->ReadF32(*norm, values).has_value());
  EXPECT_EQ(values, (std::vector<float>{1.0f, -0.5f}));
  const TensorEntry* expert = (*file)->FindTensor("layers.0.block_sparse_moe.experts.0.w1");
  ASSERT_NE(expert, nullptr);
  EXPECT_EQ(expert->dtype, DType::kMxfp4);
  std::vector<std::byte> blob(17);
  ASSERT_TRUE((*file)->ReadBlob(*expert, blob).has_value());
  std::vector<float> row(32);
  ASSERT_TRUE(DecodeMxfp4(blob, 1, 32, row).has_value());
  const std::vector<float> expected = {0,     .25f,  .5f,  .75f,  1,  1.5f,  2,  3,
                                       -0.0f, -.25f, -.5f, -.75f, -1, -1.5f, -2, -3};
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(row[i], expected[i % 16]);
    EXPECT_EQ(std::signbit(row[i]), std::signbit(expected[i % 16]));
  }
  EXPECT_EQ((*file)->FindTensor("norm.weigh"), nullptr);
  EXPECT_FALSE(MkimFile::Open(path).has_value());  // as a model it lacks nearly everything
}

TEST(Reader, SmallModelOpensWithoutAWarning) {
  const TempDirectory directory;
  const auto file = MkimFile::Open(directory.Write("small.bin", SmallK3().Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_TRUE((*file)->warnings().empty()) << (*file)->warnings()[0];
  const MkimConfig& config = (*file)->config();
  EXPECT_EQ(config.kda_conv, 3u);
  EXPECT_EQ(config.a_log, ALogReading::kChannel);
  EXPECT_EQ(config.specials.bos, 32);
  EXPECT_EQ(config.specials.end_of_msg, 37);
  EXPECT_EQ(config.specials.open, -1);
  EXPECT_TRUE(!config.IsMla(1) && config.IsMla(2) && config.IsDense(3) && !config.IsDense(2));
  // 5 + 6 L + 14 KDA + 8 MLA + 3 dense + (8 + 3 E) MoE + codebook
  EXPECT_EQ((*file)->tensors().size(), 5u + 6 * 4 + 14 * 2 + 8 * 2 + 3 * 2 + (8 + 3 * 2) * 2 + 1);
  for (uint32_t l = 0; l < 4; ++l) {
    for (uint32_t e = 0; e < 2; ++e) {
      const std::string name =
          "layers." + std::to_string(l) + ".block_sparse_moe.experts." + std::to_string(e) + ".w2";
      EXPECT_EQ((*file)->Expert(l, e, ExpertPart::kDown), (*file)->FindTensor(name)) << name;
    }
  }
  EXPECT_NE((*file)->Expert(1, 1, ExpertPart::kUp), nullptr);
  EXPECT_EQ((*file)->Expert(0, 0, ExpertPart::kUp), nullptr);
  EXPECT_EQ((*file)->Expert(4, 0, ExpertPart::kUp), nullptr);
  EXPECT_EQ((*file)->Expert(1, 2, ExpertPart::kUp), nullptr);
}

TEST(Reader, ResourcesAreForeseen) {
  const TempDirectory directory;
  const std::string path = directory.Write("small.bin", SmallK3().Assemble());
  const auto file = MkimFile::Open(path);
  ASSERT_TRUE(file.has_value());
  const ResourcePlan& plan = (*file)->resources();
  const uint64_t matrix = 32 * 64;
  EXPECT_EQ(plan.expert_bytes, 3 * (matrix / 2 + matrix / 32) + 3 * matrix / 16 + 3 * matrix * 4 +
                                   3 * (matrix / 2 + matrix / 32 + 4));
  // Two KDA layers: H D^2 and three windows of (taps-1) P.
  EXPECT_EQ(plan.state_bytes, 2u * (2 * 8 * 8 + 3 * 2 * 16) * 4);
  EXPECT_EQ(plan.kv_bytes_per_token, 2u * (12 + 2) * 4);
  EXPECT_EQ(plan.spine_bytes, plan.spine_file_bytes);
  EXPECT_EQ(plan.q8_head_bytes, 0u);  // hidden 24 is no multiple of 32
  OpenOptions options;
  options.memory_limit = plan.loaded_bytes();
  EXPECT_TRUE(MkimFile::Open(path, options).has_value());
  options.memory_limit = plan.loaded_bytes() / 2;
  const auto refused = MkimFile::Open(path, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

TEST(Reader, FallbackPatternsAndExplicitLists) {
  RawModel model = SmallK3();
  std::vector<std::string> warnings;
  const auto parse = [&](const std::string& json) {
    auto config = ParseConfig(json, "config", {}, warnings);
    EXPECT_TRUE(config.has_value()) << config.error().ToString();
    return config.value_or(MkimConfig());
  };
  const MkimConfig pattern = parse(R"({"n_layers":6,"first_k_dense":2})");
  for (uint32_t l = 0; l < 6; ++l) {
    EXPECT_EQ(pattern.IsMla(l), l == 3 || l == 5) << l;
    EXPECT_EQ(pattern.IsDense(l), l < 2) << l;
  }
  const MkimConfig none =
      parse(R"({"n_layers":6,"first_k_dense":2,"mla_layers":[],"dense_layers":[]})");
  EXPECT_EQ(none.CountMla(), 0u);
  EXPECT_EQ(none.CountDense(), 0u);
  const MkimConfig lists = parse(R"({"n_layers":6,"mla_layers":[0,4],"dense_layers":[4]})");
  EXPECT_TRUE(lists.IsMla(0) && lists.IsMla(4) && lists.CountMla() == 2);
  EXPECT_TRUE(lists.IsDense(4) && lists.CountDense() == 1);
  const MkimConfig defaults = DefaultConfig();
  EXPECT_EQ(defaults.n_layers, 93u);
  EXPECT_TRUE(defaults.IsMla(3) && defaults.IsMla(92) && !defaults.IsMla(90));
  EXPECT_EQ(defaults.CountMla(), 24u);
  EXPECT_EQ(defaults.CountDense(), 1u);
}

TEST(Reader, AdditiveKeysAreRead) {
  std::vector<std::string> warnings;
  const auto config =
      ParseConfig(R"({"kda_l2":"sum1e-6","situ_beta":3.5,"situ_linear_beta":20,"routed_scale":2.5,)"
                  R"("tokenizer":"bytes","hidden":5.12e2,"layer_origin":[1],"typo":1})",
                  "config", {}, warnings);
  ASSERT_TRUE(config.has_value()) << config.error().ToString();
  EXPECT_EQ(config->kda_l2, KdaL2::kSum);
  EXPECT_EQ(config->situ_beta, 3.5f);
  EXPECT_EQ(config->situ_linear_beta, 20.0f);
  EXPECT_EQ(config->routed_scale, 2.5f);
  EXPECT_EQ(config->tokenizer, "bytes");
  EXPECT_EQ(config->hidden, 512u);
  EXPECT_TRUE(Mentions(warnings, "\"typo\""));
  EXPECT_FALSE(Mentions(warnings, "layer_origin"));
  ConfigOptions strict;
  strict.require_all_dimensions = true;
  EXPECT_FALSE(ParseConfig("{}", "config", strict, warnings).has_value());
}

TEST(Reader, ALogIsReadPerHeadOrPerChannel) {
  MkimConfig config;
  config.kda_heads = 3;
  config.kda_dim = 8;
  std::vector<std::string> warnings;
  EXPECT_EQ(ResolveALog(config, 3, "A_log", warnings).value(), ALogReading::kHead);
  EXPECT_EQ(ResolveALog(config, 8, "A_log", warnings).value(), ALogReading::kChannel);
  EXPECT_TRUE(warnings.empty());
  EXPECT_FALSE(ResolveALog(config, 5, "A_log", warnings).has_value());
  config.kda_a_log = ALogReading::kHead;
  EXPECT_EQ(ResolveALog(config, 3, "A_log", warnings).value(), ALogReading::kHead);
  EXPECT_FALSE(ResolveALog(config, 8, "A_log", warnings).has_value());
  config.kda_heads = 8;
  EXPECT_EQ(ResolveALog(config, 8, "A_log", warnings).value(), ALogReading::kHead);
  config.kda_a_log.reset();
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(ResolveALog(config, 8, "A_log", warnings).value(), ALogReading::kChannel);
  EXPECT_TRUE(Mentions(warnings, "kda_a_log"));
}

TEST(Reader, ALogPerHeadInAFile) {
  for (const std::vector<uint32_t>& dims :
       {std::vector<uint32_t>{2}, std::vector<uint32_t>{2, 1}, std::vector<uint32_t>{1, 1, 2, 1}}) {
    const TempDirectory directory;
    RawModel model = SmallK3();
    for (const char* name : {"layers.0.self_attn.A_log", "layers.1.self_attn.A_log"}) {
      model.Find(name).dims = dims;
      model.Find(name).data = test::F32Bytes({1, 2});
    }
    const auto file = MkimFile::Open(directory.Write("head.bin", model.Assemble()));
    ASSERT_TRUE(file.has_value()) << file.error().ToString();
    EXPECT_EQ((*file)->config().a_log, ALogReading::kHead);
  }
}

TEST(Reader, OtherSpellingsOfAShape) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  model.Find("layers.0.self_attn.dt_bias").dims = {2, 8};
  model.Find("layers.2.mlp_res_proj.weight").dims = {1, 24};
  model.Find("output_attn_res_proj.weight").dims = {24};
  model.Find("layers.1.self_attn.v_conv1d.weight").dims = {16, 1, 3};
  model.tensors.push_back({"vision.weight", 0, {2}, test::F32Bytes({1, 2}), {}, {}, {}, {}, {}});
  const auto file = MkimFile::Open(directory.Write("model.bin", model.Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_TRUE(Mentions((*file)->warnings(), "'vision.weight'"));
}

TEST(Reader, BlobsMayLieInAnotherOrderThanTheirEntries) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  auto& first = model.Find("layers.2.input_layernorm.weight");
  auto& second = model.Find("layers.2.post_attention_layernorm.weight");
  first.data = test::F32Bytes(std::vector<float>(24, 1.5f));
  second.data = test::F32Bytes(std::vector<float>(24, 2.5f));
  const std::string bytes = model.Assemble();
  first.offset = bytes.find(second.data);
  second.offset = bytes.find(first.data);
  const auto file = MkimFile::Open(directory.Write("model.bin", model.Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  std::vector<float> values(24);
  ASSERT_TRUE((*file)->ReadF32(*(*file)->FindTensor(first.name), values).has_value());
  EXPECT_EQ(values, std::vector<float>(24, 2.5f));
}

TEST(Reader, LooseAlignmentIsAWarning) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  model.Find("layers.0.self_attn.q_proj.weight").alignment = 4;
  for (auto& tensor : model.tensors) tensor.alignment = tensor.dtype == 0 ? 4 : 1;
  const auto file = MkimFile::Open(directory.Write("model.bin", model.Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_TRUE(Mentions((*file)->warnings(), "not aligned"));
}

TEST(Reader, Bf16SpineUnderFormat3) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  auto& norm = model.Find("norm.weight");
  norm.dtype = 16;
  norm.data.clear();
  for (int i = 0; i < 24; ++i) norm.data += std::string("\x40\xc0", 2);  // 0xc040 = -3
  const auto refused = MkimFile::Open(directory.Write("two.bin", model.Assemble()));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("norm.weight"), std::string::npos);
  model.Config("\"format\":2", "\"format\":3");
  const auto file = MkimFile::Open(directory.Write("three.bin", model.Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  std::vector<float> values(24);
  ASSERT_TRUE((*file)->ReadF32(*(*file)->FindTensor("norm.weight"), values).has_value());
  EXPECT_EQ(values, std::vector<float>(24, -3.0f));
  std::vector<float> part(5);
  ASSERT_TRUE((*file)->ReadF32Range(*(*file)->FindTensor("norm.weight"), 19, part).has_value());
  EXPECT_EQ(part, std::vector<float>(5, -3.0f));
  // Twice this is 0 in 64 bits.
  EXPECT_FALSE((*file)
                   ->ReadF32Range(*(*file)->FindTensor("norm.weight"), uint64_t{1} << 63, part)
                   .has_value());
  EXPECT_FALSE((*file)->ReadF32Range(*(*file)->FindTensor("norm.weight"), 20, part).has_value());
}

TEST(Reader, ReadsOutsideATensorAreRefused) {
  const TempDirectory directory;
  const auto file = MkimFile::Open(directory.Write("small.bin", SmallK3().Assemble()));
  ASSERT_TRUE(file.has_value());
  const TensorEntry& norm = *(*file)->FindTensor("norm.weight");
  std::vector<float> values(25);
  std::vector<std::byte> bytes(97);
  EXPECT_FALSE((*file)->ReadF32(norm, values).has_value());
  EXPECT_FALSE((*file)->ReadBlob(norm, bytes).has_value());
  EXPECT_FALSE((*file)->ReadBlobRange(norm, 0, bytes).has_value());
  EXPECT_FALSE((*file)->ReadBlobRange(norm, ~uint64_t{0}, std::span(bytes).first(8)).has_value());
  EXPECT_FALSE(
      (*file)->ReadF32Range(norm, uint64_t{1} << 62, std::span(values).first(1)).has_value());
  const TensorEntry& expert = *(*file)->Expert(1, 0, ExpertPart::kGate);
  values.resize(expert.elements());
  EXPECT_FALSE((*file)->ReadF32(expert, values).has_value());
}

TEST(Reader, AFileThatIsCutLaterGivesAnError) {
  const TempDirectory directory;
  const std::string path = directory.Write("small.bin", SmallK3().Assemble());
  const auto file = MkimFile::Open(path);
  ASSERT_TRUE(file.has_value());
  EXPECT_TRUE((*file)->Unchanged().has_value());
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(std::filesystem::file_size(path) - 100)),
            0);
  const Status changed = (*file)->Unchanged();
  ASSERT_FALSE(changed.has_value());
  EXPECT_EQ(changed.error().code, ErrorCode::kCorrupt);
  const TensorEntry& codebook = *(*file)->FindTensor("vq_codebook");
  std::vector<float> values(codebook.elements());
  const Status read = (*file)->ReadF32(codebook, values);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
}

TEST(Reader, AFileReplacedByRenameStaysReadable) {
  const TempDirectory directory;
  const std::string path = directory.Write("small.bin", SmallK3().Assemble());
  const auto file = MkimFile::Open(path);
  ASSERT_TRUE(file.has_value());
  const std::string fingerprint = (*file)->Fingerprint().value();
  std::filesystem::rename(directory.Write("other.bin", "something else"), path);
  EXPECT_TRUE((*file)->Unchanged().has_value());
  EXPECT_EQ((*file)->Fingerprint().value(), fingerprint);
}

TEST(Reader, FingerprintTellsFilesApart) {
  const TempDirectory directory;
  const auto fingerprint = [&](const RawModel& model) {
    const auto file = MkimFile::Open(directory.Write("model.bin", model.Assemble()));
    EXPECT_TRUE(file.has_value()) << file.error().ToString();
    return file ? (*file)->Fingerprint().value_or("") : "";
  };
  const std::string base = fingerprint(SmallK3());
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(base, fingerprint(SmallK3()));
  RawModel config = SmallK3();
  config.Config("\"bos\":32", "\"bos\":33");
  EXPECT_NE(base, fingerprint(config));
  RawModel blob = SmallK3();
  blob.Find("vq_codebook").data[16000] ^= 1;
  EXPECT_NE(base, fingerprint(blob));
}

TEST(Reader, ModelsOfAnotherWriterOpen) {
  for (const char* name : {"k3a", "k3b", "k3c"}) {
    const std::string path = std::string(MK_TEST_DATA) + "/golden/k3/" + name + "/model.bin";
    const auto file = MkimFile::Open(path);
    ASSERT_TRUE(file.has_value()) << file.error().ToString();
    const MkimConfig& c = (*file)->config();
    const uint64_t moe = c.n_layers - c.CountDense();
    EXPECT_EQ((*file)->tensors().size(), 5 + 6 * c.n_layers + 14 * (c.n_layers - c.CountMla()) +
                                             8 * c.CountMla() + 3 * c.CountDense() +
                                             (8 + 3 * uint64_t{c.n_experts}) * moe);
    EXPECT_EQ(Mentions((*file)->warnings(), "kda_conv = 4"), std::string(name) == "k3b");
    EXPECT_FALSE(Mentions((*file)->warnings(), "unknown"));
  }
}

TEST(Reader, DeepSeekContainersAreReported) {
  const TempDirectory directory;
  RawModel model;
  model.config =
      R"({"arch":"deepseek_v4","vocab":264,"n_layers":2,"specials":{"bos":256,"end_of_msg":257},)"
      R"("ds":{"hidden":64,"n_routed_experts":1,"num_experts_per_tok":1,)"
      R"("moe_intermediate_size":32,"rms_norm_eps":1e-6}})";
  for (int l = 0; l < 2; ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".ffn.experts.0.w";
    for (const char* part : {"1", "2", "3"}) {
      model.tensors.push_back(
          {prefix + part, 1, {1, 32}, std::string(17, 'a'), {}, {}, {}, {}, {}});
    }
  }
  model.tensors.push_back({"layers.0.ffn.gate.tid2eid",
                           2,
                           {2},
                           std::string("\x05\0\0\0\xff\xff\xff\xff", 8),
                           {},
                           {},
                           {},
                           {},
                           {}});
  OpenOptions container;
  container.checks = OpenOptions::Checks::kContainer;
  const auto file = MkimFile::Open(directory.Write("ds.bin", model.Assemble()), container);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ((*file)->config().arch, Architecture::kDeepSeekV4);
  EXPECT_EQ(ArchitectureName((*file)->config().arch), "deepseek_v4");
  EXPECT_EQ((*file)->config().hidden, 64u);
  EXPECT_EQ((*file)->config().rms_eps, 1e-6f);
  EXPECT_EQ((*file)->Expert(1, 0, ExpertPart::kUp),
            (*file)->FindTensor("layers.1.ffn.experts.0.w3"));
  EXPECT_NE((*file)->Expert(1, 0, ExpertPart::kUp), nullptr);
  std::vector<int32_t> table(2);
  ASSERT_TRUE(
      (*file)->ReadI32(*(*file)->FindTensor("layers.0.ffn.gate.tid2eid"), table).has_value());
  EXPECT_EQ(table, (std::vector<int32_t>{5, -1}));
}

// A full-size MKIM0001 file whose data is a hole: 249756 tensors, all values zero.
TEST(Reader, AFullVersion1FileOpens) {
  const TempDirectory directory;
  RawModel model;
  model.magic = "MKIM0001";
  std::vector<ExpectedTensor> spine;
  ForEachK3SpineTensor(DefaultConfig(), [&](const ExpectedTensor& tensor) {
    spine.push_back(tensor);
    return true;
  });
  uint64_t position = 1 << 26;  // beyond the directory
  const auto add = [&](std::string name, uint8_t dtype, std::vector<uint32_t> dims, uint64_t size) {
    model.tensors.push_back(
        {std::move(name), dtype, std::move(dims), "", position, size, {}, {}, 1});
    position = (position + size + 63) / 64 * 64;
  };
  for (const ExpectedTensor& tensor : spine) {
    uint64_t bytes = 4;
    for (const uint32_t dim : tensor.dims) bytes *= dim;
    add(tensor.name, 0, tensor.dims, bytes);
  }
  for (int l = 1; l < 93; ++l) {
    for (int e = 0; e < 896; ++e) {
      const std::string prefix =
          "layers." + std::to_string(l) + ".block_sparse_moe.experts." + std::to_string(e) + ".w";
      add(prefix + "1", 1, {64, 128}, 4352);
      add(prefix + "2", 1, {128, 64}, 4352);
      add(prefix + "3", 1, {64, 128}, 4352);
    }
  }
  EXPECT_EQ(model.tensors.size(), 249756u);
  const std::string path = directory.Write("v1.bin", model.Assemble());
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(position)), 0);
  const auto file = MkimFile::Open(path);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ((*file)->version(), 1);
  EXPECT_EQ((*file)->config().vocab, 163840u);
  EXPECT_EQ((*file)->config().specials.end_of_msg, 163586);
  EXPECT_TRUE((*file)->warnings().empty());
  EXPECT_EQ((*file)->Expert(92, 895, ExpertPart::kUp)->name,
            "layers.92.block_sparse_moe.experts.895.w3");
}

TEST(ExpertNames, OnlyExactNamesCount) {
  const auto name = ParseExpertName("layers.12.block_sparse_moe.experts.895.w2");
  ASSERT_TRUE(name.has_value());
  EXPECT_TRUE(name->layer == 12 && name->expert == 895 && name->part == ExpertPart::kDown);
  EXPECT_TRUE(ParseExpertName("layers.0.ffn.experts.0.w1").has_value());
  for (const char* bad :
       {"layers.01.block_sparse_moe.experts.0.w1", "layers.1.block_sparse_moe.experts.00.w1",
        "layers.1.block_sparse_moe.experts.0.w4", "layers.1.block_sparse_moe.experts.0.w0",
        "layers.1.block_sparse_moe.experts.0.w1.weight", "layers..ffn.experts.0.w1",
        "layers.-1.ffn.experts.0.w1", "layers.4294967296.ffn.experts.0.w1",
        "layers.1.ffn.experts.0", "layers.1.ffn.shared_experts.w1", ""}) {
    EXPECT_FALSE(ParseExpertName(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace mk
