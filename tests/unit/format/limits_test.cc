// The first value beyond every limit of the reader, where nothing else is wrong that could be
// refused instead.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/format/config.h"
#include "engine/format/mkim_file.h"
#include "engine/format/mkim_writer.h"
#include "engine/format/mxfp4.h"
#include "engine/format/verify.h"
#include "engine/format/vq1.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

std::string ConfigError(const std::string& json, bool require_all = false) {
  ConfigOptions options;
  options.require_all_dimensions = require_all;
  std::vector<std::string> warnings;
  const auto config = ParseConfig(json, "config", options, warnings);
  return config ? "" : config.error().message;
}

bool Complains(const std::string& error, const std::string& key) {
  return error.find("\"" + key + "\" is ") != std::string::npos;
}

TEST(ConfigLimits, EveryDimensionHasItsRange) {
  struct Range {
    const char* key;
    int64_t least;
    int64_t most;
  };
  constexpr int64_t kMillion = 1 << 20;
  const std::vector<Range> ranges = {{"n_layers", 1, 4096},
                                     {"hidden", 1, kMillion},
                                     {"vocab", 1, 1 << 24},
                                     {"n_experts", 1, 65536},
                                     {"top_k", 1, 65536},
                                     {"n_shared", 0, 65536},
                                     {"kda_heads", 1, 4096},
                                     {"kda_dim", 1, 4096},
                                     {"kda_conv", 2, 16},
                                     {"kda_fa_rank", 1, kMillion},
                                     {"mla_heads", 1, 4096},
                                     {"mla_q_lora", 1, kMillion},
                                     {"mla_kv_lora", 1, kMillion},
                                     {"mla_nope", 1, 4096},
                                     {"mla_rope", 0, 4096},
                                     {"mla_v", 1, 4096},
                                     {"routed_hidden", 1, kMillion},
                                     {"moe_inter", 1, kMillion},
                                     {"shared_inter", 1, kMillion},
                                     {"dense_inter", 1, kMillion},
                                     {"attn_res_block", 1, kMillion},
                                     {"first_k_dense", 0, 4096},
                                     {"format", 1, std::numeric_limits<uint32_t>::max()}};
  for (const Range& range : ranges) {
    const auto with = [&](int64_t value) {
      return ConfigError("{\"" + std::string(range.key) + "\":" + std::to_string(value) + "}");
    };
    EXPECT_TRUE(Complains(with(range.least - 1), range.key)) << range.key;
    EXPECT_FALSE(Complains(with(range.least), range.key)) << range.key;
    EXPECT_FALSE(Complains(with(range.most), range.key)) << range.key;
    EXPECT_TRUE(Complains(with(range.most + 1), range.key)) << range.key;
  }
}

TEST(ConfigLimits, EveryFloatHasItsSign) {
  for (const char* key : {"rms_eps", "situ_beta", "situ_linear_beta", "routed_scale"}) {
    EXPECT_TRUE(Complains(ConfigError("{\"" + std::string(key) + "\":0}"), key));
    EXPECT_TRUE(Complains(ConfigError("{\"" + std::string(key) + "\":-1}"), key));
    EXPECT_TRUE(Complains(ConfigError("{\"" + std::string(key) + "\":1e39}"), key)) << "over f32";
    EXPECT_FALSE(Complains(ConfigError("{\"" + std::string(key) + "\":1}"), key));
  }
  EXPECT_TRUE(Complains(ConfigError("{\"gate_lower_bound\":0}"), "gate_lower_bound"));
  EXPECT_TRUE(Complains(ConfigError("{\"gate_lower_bound\":-1e39}"), "gate_lower_bound"));
}

TEST(ConfigLimits, NumbersThatAreNotExactIntegers) {
  // 2^53 is the last integer before which doubles have no gaps; beyond it a key's text and its
  // value may differ.
  for (const char* value : {"9007199254740993", "1e16", "-1e300", "0.5", "true", "[1]"}) {
    const std::string error = ConfigError("{\"format\":" + std::string(value) + "}");
    EXPECT_TRUE(Complains(error, "format")) << value << ": " << error;
  }
  EXPECT_EQ(ConfigError("{\"format\":2.0}"), "");
  EXPECT_TRUE(Complains(ConfigError("{\"n_shared\":0.5}"), "n_shared"));
  EXPECT_NE(ConfigError("{\"mla_layers\":[-1]}"), "");
  EXPECT_NE(ConfigError("{\"mla_layers\":[0.5]}"), "");
}

TEST(ConfigLimits, DigestsAreHexOfOneLength) {
  const std::string digits(64, 'a');
  EXPECT_EQ(ConfigError("{\"content_sha256\":\"" + digits + "\"}"), "");
  EXPECT_NE(ConfigError("{\"content_sha256\":\"" + digits + "a\"}"), "");
  EXPECT_NE(ConfigError("{\"content_sha256\":\"" + digits.substr(1) + "G\"}"), "");
}

TEST(ConfigLimits, MissingDimensionsAreAnErrorWhenAskedFor) {
  EXPECT_EQ(ConfigError("{\"hidden\":64}"), "");
  EXPECT_NE(ConfigError("{\"hidden\":64}", true).find("\"n_layers\" is missing"),
            std::string::npos);
}

// Files of many bytes that take no room on the disk.
TEST(FileLimits, CountsAndLengthsThatTheFileCouldHold) {
  const TempDirectory directory;
  std::string head("MKIM0002\x02\0\0\0{}", 14);
  head += std::string("\x01\0\x40\0", 4);  // 4194305 tensors
  const std::string many = directory.Write("many.bin", head);
  ASSERT_EQ(::truncate(many.c_str(), 256 << 20), 0);
  const auto count = MkimFile::Open(many);
  ASSERT_FALSE(count.has_value());
  EXPECT_NE(count.error().message.find("n_tensors is 4194305"), std::string::npos)
      << count.error().message;

  const std::string large =
      directory.Write("large.bin", std::string("MKIM0002\x01\0\0\x01", 12) + "{}");
  ASSERT_EQ(::truncate(large.c_str(), 64 << 20), 0);  // config_len 2^24 + 1
  const auto config = MkimFile::Open(large);
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message.find("config_len is 16777217"), std::string::npos)
      << config.error().message;
}

TEST(FileLimits, NamesEndBeforeDel) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  model.Find("layers.2.input_layernorm.weight").name[3] = '\x7f';
  const auto file = MkimFile::Open(directory.Write("del.bin", model.Assemble()));
  ASSERT_FALSE(file.has_value());
  EXPECT_NE(file.error().message.find("printable"), std::string::npos);
}

TEST(FileLimits, ExpertNamesOutsideTheModelTakeNoPlaceInIt) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  const std::string expert = "layers.1.block_sparse_moe.experts.0.w1";
  for (const char* name :
       {"layers.4294967295.block_sparse_moe.experts.0.w1",
        "layers.1.block_sparse_moe.experts.4294967295.w1", "layers.1.ffn.experts.0.w1"}) {
    auto copy = model.Find(expert);
    copy.name = name;
    model.tensors.push_back(copy);
  }
  const auto file = MkimFile::Open(directory.Write("more.bin", model.Assemble()));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  EXPECT_EQ((*file)->Expert(1, 0, ExpertPart::kGate), (*file)->FindTensor(expert));
}

TEST(FileLimits, ExpertsThatAreNotThereTakeNoMemory) {
  const TempDirectory directory;
  const std::string path = directory.Write(
      "claims.bin", std::string("MKIM0002\x22\0\0\0", 12) +
                        R"({"n_layers":256,"n_experts":65536})" + std::string(16, '\0'));
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);
  OpenOptions options;
  options.checks = OpenOptions::Checks::kContainer;
  const auto file = MkimFile::Open(path, options);
  ::getrusage(RUSAGE_SELF, &after);
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  // A table of all experts would be 200 MB.
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 50 * 1024);
}

TEST(FileLimits, ReadsFitTheTensor) {
  const TempDirectory directory;
  const auto file = MkimFile::Open(directory.Write("model.bin", SmallK3().Assemble()));
  ASSERT_TRUE(file.has_value());
  const TensorEntry& norm = *(*file)->FindTensor("norm.weight");
  const TensorEntry& packed = *(*file)->Expert(1, 0, ExpertPart::kGate);
  std::vector<std::byte> bytes(95);
  EXPECT_FALSE((*file)->ReadBlob(norm, bytes).has_value());
  bytes.resize(96);
  EXPECT_TRUE((*file)->ReadBlob(norm, bytes).has_value());
  std::vector<float> values(23);
  EXPECT_FALSE((*file)->ReadF32(norm, values).has_value());
  EXPECT_FALSE((*file)->ReadF32Range(packed, 0, values).has_value());
  std::vector<int32_t> integers(24);
  EXPECT_FALSE((*file)->ReadI32(norm, integers).has_value());
}

TEST(CodecLimits, EverySizeOfVq1) {
  std::vector<float> book(kVq1CodebookSize, 0.5f);
  std::vector<float> values(64, 1.0f);
  std::vector<std::byte> blob(4);
  const auto encode = [&](size_t count, size_t cols, size_t bytes, size_t weights) {
    return EncodeVq1(std::span(values).first(count), 1, cols, book, std::span(book).first(weights),
                     std::span(blob).first(bytes))
        .has_value();
  };
  EXPECT_TRUE(encode(32, 32, 2, 0));
  EXPECT_TRUE(encode(32, 32, 2, 32));
  EXPECT_FALSE(encode(24, 24, 1, 0)) << "columns";
  EXPECT_FALSE(encode(0, 0, 0, 0)) << "no columns";
  EXPECT_FALSE(encode(48, 32, 2, 0)) << "values";
  EXPECT_FALSE(encode(32, 32, 3, 0)) << "blob";
  EXPECT_FALSE(encode(32, 32, 2, 48)) << "weights";
}

TEST(CodecLimits, EverySizeOfMxfp4) {
  std::vector<float> values(320, 1.0f);
  std::vector<std::byte> blob(170);
  const auto encode = [&](size_t count, size_t rows, size_t cols, size_t bytes) {
    return EncodeMxfp4(std::span(values).first(count), rows, cols, std::span(blob).first(bytes),
                       Mxfp4Search::kError)
        .has_value();
  };
  EXPECT_TRUE(encode(32, 1, 32, 17));
  EXPECT_FALSE(encode(160, 4, 40, 85)) << "columns";
  EXPECT_FALSE(encode(0, 1, 0, 0)) << "no columns";
  EXPECT_FALSE(encode(64, 1, 32, 17)) << "values";
  EXPECT_FALSE(encode(32, 1, 32, 18)) << "blob";
}

TEST(VerifyLimits, ValuesThatOnlyAFullScanSees) {
  const TempDirectory directory;
  const auto problems = [&](const RawModel& model) {
    const auto report = VerifyFile(directory.Write("model.bin", model.Assemble()));
    EXPECT_TRUE(report.has_value()) << report.error().ToString();
    return report ? report->problems_total : 0;
  };
  RawModel halves = SmallK3();
  halves.Config("\"format\":2", "\"format\":3");
  auto& matrix = halves.Find("layers.3.mlp.up_proj.weight");
  matrix.dtype = 16;
  matrix.data.assign(28 * 24 * 2, '\0');
  EXPECT_EQ(problems(halves), 0u);
  matrix.data.replace(10, 2, "\x80\x7f");  // infinity
  EXPECT_EQ(problems(halves), 1u);

  for (const float smax :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1.0f}) {
    RawModel square = SmallK3();
    auto& data = square.Find("layers.2.block_sparse_moe.experts.1.w1").data;
    data.replace(data.size() - 4, 4, test::F32Bytes({smax}));
    EXPECT_EQ(problems(square), 1u) << smax;
  }
}

TEST(VerifyLimits, AFileThatChangesMeanwhileIsNotVerified) {
  const TempDirectory directory;
  const std::string path = directory.Write("model.bin", SmallK3().Assemble());
  VerifyOptions options;
  options.progress = [&path](uint64_t, uint64_t) {
    const timespec times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return true;
  };
  const auto report = VerifyFile(path, options);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message.find("changed"), std::string::npos) << report.error().message;
}

TEST(WriterLimits, AFileIsReplacedOnlyWhenAskedFor) {
  const TempDirectory directory;
  const std::string path = directory.Write("out.bin", "the old file");
  const std::vector<TensorSpec> specs = {{"a", DType::kF32, {1}}};
  MkimWriter::Options options;
  EXPECT_TRUE(MkimWriter::Create(path, "{}", specs, options).has_value());
  options.replace = false;
  const auto refused = MkimWriter::Create(path, "{}", specs, options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("exists already"), std::string::npos);
}

TEST(WriterLimits, OnlyDeclaredTensorsAreWritten) {
  const TempDirectory directory;
  const std::vector<TensorSpec> specs = {{"a", DType::kF32, {1}}};
  auto writer = MkimWriter::Create(directory.Path("out.bin"), "{}", specs);
  ASSERT_TRUE(writer.has_value());
  const std::vector<std::byte> four(4);
  const Status written = (*writer)->WriteBlobRange(1, 0, four);
  ASSERT_FALSE(written.has_value());
  EXPECT_NE(written.error().message.find("no tensor 1"), std::string::npos);
  const auto one = std::span(four).first(1);
  EXPECT_FALSE((*writer)->WriteBlobRange(0, 5, one).has_value()) << "starts beyond its end";
  EXPECT_FALSE((*writer)->WriteBlobRange(0, 4, one).has_value()) << "ends beyond its end";
  EXPECT_TRUE((*writer)->WriteBlobRange(0, 3, one).has_value());
}

TEST(WriterLimits, NothingIsLaidOutThatNoReaderTakes) {
  const std::vector<TensorSpec> one = {{"a", DType::kF32, {1}}};
  const std::string config(16u << 20, ' ');
  EXPECT_TRUE(PlanLayout(config, one, ExpertAlign::kAuto).has_value());
  const auto large = PlanLayout(config + " ", one, ExpertAlign::kAuto);
  ASSERT_FALSE(large.has_value());
  EXPECT_NE(large.error().message.find("longer than 16 MiB"), std::string::npos);
  const auto many = PlanLayout("{}", std::vector<TensorSpec>(4194305), ExpertAlign::kAuto);
  ASSERT_FALSE(many.has_value());
  EXPECT_NE(many.error().message.find("more than 4194304 tensors"), std::string::npos)
      << many.error().message;
}

TEST(WriterLimits, AFileThatTheDiskCannotHoldIsNotBegun) {
  const TempDirectory directory;
  const std::vector<TensorSpec> specs = {{"a", DType::kF32, {1u << 24, 1u << 24}}};  // 1 PiB
  const auto writer = MkimWriter::Create(directory.Path("out.bin"), "{}", specs);
  ASSERT_FALSE(writer.has_value());
  EXPECT_NE(writer.error().message.find("the disk has"), std::string::npos)
      << writer.error().message;
}

}  // namespace
}  // namespace mk
