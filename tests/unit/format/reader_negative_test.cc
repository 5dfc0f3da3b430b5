// Every check of the reader, shown by a file in which one field is wrong. Each case names what the
// message must hold, so that a case that fails for another reason is found out.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/format/mkim_file.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::F32Bytes;
using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

struct Case {
  std::string name;
  std::function<void(RawModel&)> change;
  std::string message;  // part of the error's message
  ErrorCode code = ErrorCode::kCorrupt;
};

const char* const kExpert = "layers.1.block_sparse_moe.experts.0.w2";
const char* const kNorm = "layers.2.input_layernorm.weight";

const char* const kVq1 = "layers.1.block_sparse_moe.experts.1.w2";

std::function<void(RawModel&)> Config(const std::string& from, const std::string& to) {
  return [=](RawModel& m) { m.Config(from, to); };
}

std::vector<Case> HeaderCases() {
  return {
      {"magic", [](RawModel& m) { m.magic = "MKIM0003"; }, "MKIM0001 or MKIM0002"},
      {"config_len huge", [](RawModel& m) { m.config_bytes = (16u << 20) + 1; }, "config_len"},
      {"config_len beyond the file", [](RawModel& m) { m.config_bytes = 15u << 20; }, "config_len"},
      {"config_len short", [](RawModel& m) { m.config_bytes = 20; }, "n_tensors"},
      {"n_tensors huge", [](RawModel& m) { m.count = 4194305; }, "n_tensors"},
      {"n_tensors over the file", [](RawModel& m) { m.count = 4000000; }, "n_tensors"},
      {"name_len 0", [](RawModel& m) { m.Find(kNorm).name_bytes = 0; }, "name_len"},
      {"name_len 513", [](RawModel& m) { m.Find(kNorm).name_bytes = 513; }, "name_len"},
      {"name not printable", [](RawModel& m) { m.Find(kNorm).name[3] = '\x07'; }, "printable"},
      {"name with a NUL", [](RawModel& m) { m.Find(kNorm).name[3] = '\0'; }, "printable"},
      {"name not ASCII", [](RawModel& m) { m.Find(kNorm).name[3] = '\xc3'; }, "printable"},
      {"name twice", [](RawModel& m) { m.Find(kNorm).name = "norm.weight"; }, "twice"},
      {"n_dims 0", [](RawModel& m) { m.Find(kNorm).n_dims = 0; }, "n_dims"},
      {"n_dims 5", [](RawModel& m) { m.Find(kNorm).n_dims = 5; }, "n_dims"},
      {"dim 0", [](RawModel& m) { m.Find(kNorm).dims = {0}; }, "[0]"},
      {"dims overflow",
       [](RawModel& m) {
         m.Find(kNorm).dims = {0xffffffff, 0xffffffff, 0xffffffff};
       },
       "2^48"},
      {"dims over 2^48",
       [](RawModel& m) {
         m.Find(kNorm).dims = {1u << 25, 1u << 24};
       },
       "2^48"},
      {"dtype 5", [](RawModel& m) { m.Find(kNorm).dtype = 5; }, "dtype", ErrorCode::kUnsupported},
      {"dtype 17", [](RawModel& m) { m.Find(kNorm).dtype = 17; }, "dtype", ErrorCode::kUnsupported},
      {"dtype 255", [](RawModel& m) { m.Find(kNorm).dtype = 255; }, "dtype",
       ErrorCode::kUnsupported},
  };
}

std::vector<Case> BlobCases() {
  return {
      {"size", [](RawModel& m) { m.Find(kNorm).size = 92; }, "takes 96 bytes"},
      {"size of MXFP4", [](RawModel& m) { m.Find(kExpert).size = 1087; }, "takes 1088 bytes"},
      {"columns of MXFP4",
       [](RawModel& m) {
         m.Find(kExpert).dims = {64, 30};
       },
       "multiples of 32"},
      {"columns of VQ1",
       [](RawModel& m) {
         m.Find("layers.1.block_sparse_moe.experts.1.w1").dims = {64, 40};
       },
       "multiples of 16"},
      {"one dim of MXFP4", [](RawModel& m) { m.Find(kExpert).dims = {2048}; }, "two dims"},
      {"offset in the header", [](RawModel& m) { m.Find(kNorm).offset = 64; }, "inside the header"},
      {"offset beyond the file", [](RawModel& m) { m.Find(kNorm).offset = 1u << 30; },
       "beyond the end"},
      {"offset overflow", [](RawModel& m) { m.Find(kNorm).offset = ~uint64_t{63}; },
       "beyond the end"},
      {"last blob cut",
       [](RawModel& m) {
         m.tensors.back().data.resize(16000);
         m.tensors.back().size = 16384;
       },
       "beyond the end"},
      {"alignment",
       [](RawModel& m) {
         m.Find(kNorm).data = "xy" + m.Find(kNorm).data;
         m.Find(kNorm).size = 96;
         m.Find(kNorm).alignment = 1;
         // Two bytes in front of the floats, and the offset made odd on purpose.
         const std::string all = m.Assemble();
         m.Find(kNorm).offset = all.find("xy") + 1;
       },
       "not a multiple of 4"},
      {"alignment by half of a float",
       [](RawModel& m) {
         // 98 bytes from a multiple of four on: the float that starts two bytes in ends with them.
         m.Find(kNorm).data = "xy" + m.Find(kNorm).data;
         m.Find(kNorm).size = 96;
         m.Find(kNorm).offset = m.Assemble().find("xy") + 2;
       },
       "not a multiple of 4"},
      {"alignment of BF16",
       [](RawModel& m) {
         m.Config("\"format\":2", "\"format\":3");
         m.Find(kNorm).dtype = 16;
         m.Find(kNorm).data = "x" + std::string(48, '\0');
         m.Find(kNorm).size = 48;
         m.Find(kNorm).alignment = 64;
         m.Find(kNorm).offset = m.Assemble().find("x" + std::string(48, '\0')) + 1;
       },
       "not a multiple of 2"},
      {"overlap",
       [](RawModel& m) {
         const std::string all = m.Assemble();
         m.Find(kNorm).offset = all.size() - m.tensors.back().data.size();
       },
       "overlap"},
      {"overlap by one byte",
       [](RawModel& m) {
         const std::string marker(128, '\xa5');
         m.Find(kVq1).data = marker;
         m.Find(kVq1).offset = m.Assemble().find(marker) - 1;
       },
       "experts.1.w1' and 'layers.1.block_sparse_moe.experts.1.w2' overlap"},
      {"overlap of the last entry with the first",
       [](RawModel& m) {
         const std::string marker(m.tensors.front().data.size(), '\xa5');
         m.tensors.front().data = marker;
         m.tensors.back().offset = m.Assemble().find(marker);
       },
       "'vq_codebook' overlap"},
  };
}

std::vector<Case> JsonCases() {
  return {
      {"not JSON", [](RawModel& m) { m.config[0] = '['; }, "JSON"},
      {"trailing bytes", [](RawModel& m) { m.config += " 1"; }, "JSON"},
      {"NUL at the end", [](RawModel& m) { m.config += '\0'; }, "NUL"},
      {"byte order mark", [](RawModel& m) { m.config = "\xEF\xBB\xBF" + m.config; }, "byte order"},
      {"duplicate key", Config("\"hidden\":24", "\"hidden\":24,\"hidden\":24"), "twice"},
      {"duplicate inner key", Config("\"bos\":32", "\"bos\":32,\"bos\":32"), "twice"},
      {"depth",
       Config("\"format\":2", "\"pruning\":" + std::string(16, '[') + std::string(16, ']')),
       "nested deeper"},
      {"invalid UTF-8", Config("\"format\":2", "\"tokenizer\":\"\xff\xfe\""), "UTF-8"},
      {"infinity", Config("\"rms_eps\":1e-5", "\"rms_eps\":1e999"), "JSON"},
      {"NaN", Config("\"rms_eps\":1e-5", "\"rms_eps\":NaN"), "JSON"},
      {"comment", Config("\"format\":2", "/* two */\"format\":2"), "JSON"},
      {"array", [](RawModel& m) { m.config = "[]"; }, "object"},
      {"negative dim", Config("\"hidden\":24", "\"hidden\":-24"), "\"hidden\""},
      {"fraction", Config("\"hidden\":24", "\"hidden\":24.5"), "\"hidden\""},
      {"string", Config("\"hidden\":24", "\"hidden\":\"24\""), "\"hidden\""},
      {"null", Config("\"hidden\":24", "\"hidden\":null"), "\"hidden\""},
      {"huge", Config("\"hidden\":24", "\"hidden\":1e300"), "\"hidden\""},
      {"over 64 bits", Config("\"hidden\":24", "\"hidden\":18446744073709551615"), "\"hidden\""},
      {"format 4", Config("\"format\":2", "\"format\":4"), "format 4", ErrorCode::kUnsupported},
      {"arch dense", Config("\"format\":2", "\"arch\":\"dense\""), "sliced plain transformer",
       ErrorCode::kUnsupported},
      {"arch unknown", Config("\"format\":2", "\"arch\":\"llama\""), "llama",
       ErrorCode::kUnsupported},
      {"arch not a string", Config("\"format\":2", "\"arch\":3"), "\"arch\""},
      {"deepseek without ds", Config("\"format\":2", "\"arch\":\"deepseek_v4\""), "\"ds\""},
  };
}

std::vector<Case> ConfigCases() {
  return {
      {"n_layers 0", Config("\"n_layers\":4", "\"n_layers\":0"), "\"n_layers\""},
      {"n_layers 4097", Config("\"n_layers\":4", "\"n_layers\":4097"), "\"n_layers\""},
      {"vocab 0", Config("\"vocab\":40", "\"vocab\":0"), "\"vocab\""},
      {"top_k 0", Config("\"top_k\":1", "\"top_k\":0"), "\"top_k\""},
      {"top_k over n_experts", Config("\"top_k\":1", "\"top_k\":3"), "top_k 3 exceeds"},
      {"attn_res_block 0", Config("\"attn_res_block\":2", "\"attn_res_block\":0"),
       "\"attn_res_block\""},
      {"kda_conv 1", Config("\"kda_conv\":3", "\"kda_conv\":1"), "\"kda_conv\""},
      {"kda_conv 17", Config("\"kda_conv\":3", "\"kda_conv\":17"), "\"kda_conv\""},
      {"list not sorted", Config("\"mla_layers\":[2,3]", "\"mla_layers\":[3,2]"), "\"mla_layers\""},
      {"list with repeats", Config("\"mla_layers\":[2,3]", "\"mla_layers\":[2,2]"),
       "\"mla_layers\""},
      {"list beyond n_layers", Config("\"dense_layers\":[0,3]", "\"dense_layers\":[0,4]"),
       "\"dense_layers\""},
      {"list of strings", Config("\"dense_layers\":[0,3]", "\"dense_layers\":[\"0\"]"),
       "\"dense_layers\""},
      {"list is a number", Config("\"dense_layers\":[0,3]", "\"dense_layers\":0"),
       "\"dense_layers\""},
      {"rms_eps 0", Config("\"rms_eps\":1e-5", "\"rms_eps\":0"), "\"rms_eps\""},
      {"rms_eps below f32", Config("\"rms_eps\":1e-5", "\"rms_eps\":1e-60"), "\"rms_eps\""},
      {"rms_eps string", Config("\"rms_eps\":1e-5", "\"rms_eps\":\"small\""), "\"rms_eps\""},
      {"gate_lower_bound 0", Config("\"gate_lower_bound\":-5", "\"gate_lower_bound\":0"),
       "\"gate_lower_bound\""},
      {"bos", Config("\"bos\":32", "\"bos\":40"), "\"specials.bos\""},
      {"end_of_msg", Config("\"end_of_msg\":37", "\"end_of_msg\":-1"), "\"specials.end_of_msg\""},
      {"default specials", Config(",\"specials\":{\"bos\":32,\"end_of_msg\":37}", ""),
       "specials.bos"},
      {"default bos", Config("\"bos\":32,", ""), "specials.bos 163584"},
      {"default end_of_msg", Config(",\"end_of_msg\":37", ""), "specials.end_of_msg 163586"},
      {"specials no object", Config("{\"bos\":32,\"end_of_msg\":37}", "[32,37]"), "\"specials\""},
      {"kda_a_log", Config("\"format\":2", "\"kda_a_log\":\"heads\""),
       "must be \"channel\" or \"head\""},
      {"kda_l2 of another form", Config("\"format\":2", "\"kda_l2\":\"max1e-6\""),
       "must be \"max1e-12\" or \"sum1e-6\""},
      {"kda_l2", Config("\"format\":2", "\"kda_l2\":1"), "\"kda_l2\""},
      {"situ_beta", Config("\"format\":2", "\"situ_beta\":0"), "\"situ_beta\""},
      {"content_sha256", Config("\"format\":2", "\"content_sha256\":\"12\""), "content_sha256"},
  };
}

std::vector<Case> CensusCases() {
  return {
      {"spine tensor missing", [](RawModel& m) { m.Erase(kNorm); }, kNorm},
      {"expert missing", [](RawModel& m) { m.Erase(kExpert); }, kExpert},
      {"more layers than tensors", Config("\"n_layers\":4", "\"n_layers\":5"), "layers.4."},
      {"other width", Config("\"dense_inter\":28", "\"dense_inter\":29"), "mlp.gate_proj.weight"},
      {"transposed",
       [](RawModel& m) {
         m.Find("layers.0.self_attn.o_proj.weight").dims = {16, 24};
       },
       "layers.0.self_attn.o_proj.weight"},
      {"spine I32", [](RawModel& m) { m.Find(kNorm).dtype = 2; }, "it must be F32"},
      {"spine MXFP4",
       [](RawModel& m) {
         auto& t = m.Find("layers.1.block_sparse_moe.routed_expert_up_proj.weight");
         t.dtype = 1;
         t.data.resize(24 * 32 / 2 + 24);
       },
       "it must be F32"},
      {"expert I32",
       [](RawModel& m) { m.Find("layers.2.block_sparse_moe.experts.0.w1").dtype = 2; },
       "an expert must be"},
      {"expert BF16",
       [](RawModel& m) {
         m.Config("\"format\":2", "\"format\":3");
         for (const char* part : {"w1", "w2", "w3"}) {
           auto& t = m.Find(std::string("layers.2.block_sparse_moe.experts.0.") + part);
           t.dtype = 16;
           t.data.resize(t.data.size() / 2);
         }
       },
       "is BF16, an expert must be"},
      {"[heads, dim] of another tensor than dt_bias",
       [](RawModel& m) {
         m.Find("layers.0.self_attn.o_norm.weight").dims = {2, 8};
         m.Find("layers.0.self_attn.o_norm.weight").data.resize(64);
       },
       "o_norm.weight' has dims [2, 8], the config calls for [8]"},
      {"mixed expert",
       [](RawModel& m) {
         auto& t = m.Find(kExpert);
         t.dtype = 3;
         t.data.resize(32 * 64 / 16);
       },
       "w1 of the same expert"},
      {"expert dims",
       [](RawModel& m) {
         m.Find(kExpert).dims = {64, 32};
       },
       "the config calls for"},
      {"codebook missing", [](RawModel& m) { m.Erase("vq_codebook"); }, "vq_codebook"},
      {"codebook shape",
       [](RawModel& m) {
         m.Find("vq_codebook").dims = {16, 256};
       },
       "vq_codebook"},
      {"codebook of three dims",
       [](RawModel& m) {
         m.Find("vq_codebook").dims = {256, 16, 1};
       },
       "it must be F32 [256, 16]"},
      {"codebook rows",
       [](RawModel& m) {
         m.Find("vq_codebook").dims = {255, 16};
         m.Find("vq_codebook").data.resize(255 * 16 * 4);
       },
       "it must be F32 [256, 16]"},
      {"codebook columns",
       [](RawModel& m) {
         m.Find("vq_codebook").dims = {256, 15};
         m.Find("vq_codebook").data.resize(256 * 15 * 4);
       },
       "it must be F32 [256, 16]"},
      {"codebook with NaN",
       [](RawModel& m) {
         m.Find("vq_codebook")
             .data.replace(12, 4, F32Bytes({std::numeric_limits<float>::quiet_NaN()}));
       },
       "'vq_codebook' has a value that is not finite at index 3"},
      {"codebook type", [](RawModel& m) { m.Find("vq_codebook").dtype = 2; }, "vq_codebook"},
      {"norm with NaN",
       [](RawModel& m) {
         m.Find(kNorm).data.replace(8, 4, F32Bytes({std::numeric_limits<float>::quiet_NaN()}));
       },
       "not finite at index 2"},
      {"bias with infinity",
       [](RawModel& m) {
         m.Find("layers.1.block_sparse_moe.gate.e_score_correction_bias")
             .data.replace(4, 4, F32Bytes({std::numeric_limits<float>::infinity()}));
       },
       "not finite at index 1"},
      {"A_log of another size",
       [](RawModel& m) {
         m.Find("layers.0.self_attn.A_log").dims = {7};
         m.Find("layers.0.self_attn.A_log").data.resize(28);
       },
       "kda_heads = 2"},
      {"A_log against the key", Config("\"format\":2", "\"kda_a_log\":\"head\""), "A_log"},
      {"A_log differs by layer",
       [](RawModel& m) {
         m.Find("layers.1.self_attn.A_log").dims = {2};
         m.Find("layers.1.self_attn.A_log").data.resize(8);
       },
       "layers.1.self_attn.A_log"},
  };
}

class Negative : public ::testing::TestWithParam<std::vector<Case> (*)()> {};

TEST_P(Negative, OneWrongFieldIsRefusedAndNamed) {
  const TempDirectory directory;
  for (const Case& wrong : GetParam()()) {
    RawModel model = SmallK3();
    wrong.change(model);
    const std::string path = directory.Write("wrong.bin", model.Assemble());
    const auto file = MkimFile::Open(path);
    ASSERT_FALSE(file.has_value()) << wrong.name;
    const Error& error = file.error();
    EXPECT_EQ(error.code, wrong.code) << wrong.name << ": " << error.ToString();
    EXPECT_NE(error.message.find(wrong.message), std::string::npos)
        << wrong.name << ": " << error.message;
    EXPECT_NE(error.message.find("wrong.bin"), std::string::npos) << wrong.name;
    EXPECT_EQ(error.ToString().find('\n'), std::string::npos) << wrong.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Header, Negative, ::testing::Values(&HeaderCases));
INSTANTIATE_TEST_SUITE_P(Blobs, Negative, ::testing::Values(&BlobCases));
INSTANTIATE_TEST_SUITE_P(Json, Negative, ::testing::Values(&JsonCases));
INSTANTIATE_TEST_SUITE_P(Config, Negative, ::testing::Values(&ConfigCases));
INSTANTIATE_TEST_SUITE_P(Census, Negative, ::testing::Values(&CensusCases));

TEST(NegativeFiles, EveryCutIsRefused) {
  const TempDirectory directory;
  const std::string whole = SmallK3().Assemble();
  for (size_t size = 0; size < whole.size(); size += size < 12000 ? 61 : 997) {
    const auto file = MkimFile::Open(directory.Write("cut.bin", whole.substr(0, size)));
    ASSERT_FALSE(file.has_value()) << size;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << size;
  }
}

TEST(NegativeFiles, ACutIsNamedByWhatItCutsOff) {
  const TempDirectory directory;
  const std::string whole = SmallK3().Assemble();
  const auto message = [&](size_t size) {
    const auto file = MkimFile::Open(directory.Write("cut.bin", whole.substr(0, size)));
    return file ? std::string() : file.error().message;
  };
  const auto file = MkimFile::Open(directory.Write("whole.bin", whole));
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  const size_t count_at = 12 + SmallK3().config.size();
  EXPECT_NE(message(15).find("only 15 bytes"), std::string::npos) << message(15);
  EXPECT_NE(message(16).find("config_len"), std::string::npos) << message(16);
  EXPECT_NE(message(count_at + 3).find("config_len"), std::string::npos) << message(count_at + 3);
  EXPECT_EQ(message(count_at + 4).find("config_len"), std::string::npos);
  const size_t header = (*file)->data_start();
  EXPECT_NE(message(header - 1).find("the header needs"), std::string::npos) << message(header - 1);
  EXPECT_EQ(message(header).find("the header needs"), std::string::npos);
  EXPECT_NE(message(whole.size() - 1).find("beyond the end"), std::string::npos);
}

TEST(NegativeFiles, AConfigOver16MiBIsRefusedThoughTheFileHoldsIt) {
  const TempDirectory directory;
  RawModel model = SmallK3();
  model.config += std::string((16u << 20) + 1 - model.config.size(), ' ');
  auto file = MkimFile::Open(directory.Write("large.bin", model.Assemble()));
  ASSERT_FALSE(file.has_value());
  EXPECT_NE(file.error().message.find("config_len is 16777217"), std::string::npos);
  model.config.pop_back();
  file = MkimFile::Open(directory.Write("large.bin", model.Assemble()));
  EXPECT_TRUE(file.has_value()) << file.error().ToString();
}

TEST(NegativeFiles, NotARegularFile) {
  const TempDirectory directory;
  EXPECT_EQ(MkimFile::Open(directory.Path("absent.bin")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(MkimFile::Open(directory.Path(".")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(MkimFile::Open("/dev/zero").error().code, ErrorCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo(directory.Path("pipe.bin").c_str(), 0600), 0);
  EXPECT_EQ(MkimFile::Open(directory.Path("pipe.bin")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(MkimFile::Open(std::string("a\0b", 3)).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace mk
