#include "engine/format/verify.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdio>
#include <limits>
#include <string>

#include "engine/format/digest.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

VerifyReport Verify(const RawModel& model) {
  const TempDirectory directory;
  auto report = VerifyFile(directory.Write("model.bin", model.Assemble()));
  EXPECT_TRUE(report.has_value()) << report.error().ToString();
  return report.value_or(VerifyReport());
}

TEST(Verify, ASoundFileIsFullyRead) {
  const RawModel model = SmallK3();
  const std::string bytes = model.Assemble();
  const VerifyReport report = Verify(model);
  EXPECT_TRUE(report.ok()) << report.problems[0].message;
  EXPECT_EQ(report.file_bytes, bytes.size());
  EXPECT_EQ(report.tensors, model.tensors.size());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  EXPECT_EQ(report.xxh3_128, hex);
  uint64_t values = 0;
  for (const auto& t : model.tensors) {
    const uint64_t bytes_of = t.data.size();
    const uint64_t scales = 32 * 64 / 32;
    values += t.dtype == 0   ? bytes_of / 4
              : t.dtype == 3 ? bytes_of
                             : scales + (t.dtype == 4 ? 1 : 0);
  }
  EXPECT_EQ(report.values_checked, values);
}

TEST(Verify, AMatrixValueThatIsNotFinite) {
  RawModel model = SmallK3();
  auto& data = model.Find("layers.3.mlp.up_proj.weight").data;
  data.replace(40, 4, test::F32Bytes({std::numeric_limits<float>::quiet_NaN()}));
  data.replace(80, 4, test::F32Bytes({-std::numeric_limits<float>::infinity()}));
  const VerifyReport report = Verify(model);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].tensor, "layers.3.mlp.up_proj.weight");
  EXPECT_EQ(report.problems[0].count, 2u);
  EXPECT_NE(report.problems[0].message.find("value 10 "), std::string::npos);
}

TEST(Verify, AScaleByteOf255) {
  RawModel model = SmallK3();
  model.Find("layers.1.block_sparse_moe.experts.0.w3").data[1024 + 17] = '\xff';
  const VerifyReport report = Verify(model);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].tensor, "layers.1.block_sparse_moe.experts.0.w3");
  EXPECT_NE(report.problems[0].message.find("scale byte 17"), std::string::npos);
  // A nibble byte of 255 and a quadratic scale of 255 are sound.
  RawModel sound = SmallK3();
  sound.Find("layers.1.block_sparse_moe.experts.0.w3").data[5] = '\xff';
  sound.Find("layers.2.block_sparse_moe.experts.1.w3").data[1024 + 17] = '\xff';
  EXPECT_TRUE(Verify(sound).ok());
}

TEST(Verify, BadSmax) {
  RawModel model = SmallK3();
  auto& data = model.Find("layers.2.block_sparse_moe.experts.1.w1").data;
  data.replace(data.size() - 4, 4, test::F32Bytes({-1.0f}));
  const VerifyReport report = Verify(model);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_NE(report.problems[0].message.find("smax"), std::string::npos);
}

TEST(Verify, PaddingThatIsNotZero) {
  const TempDirectory directory;
  std::string bytes = SmallK3().Assemble() + std::string(3, '\0');
  bytes.back() = 'x';
  const auto report = VerifyFile(directory.Write("model.bin", bytes));
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_NE(report->problems[0].message.find("padding"), std::string::npos);
}

TEST(Verify, RecordedDigest) {
  RawModel model = SmallK3();
  Sha256Digest digest;
  for (const auto& t : model.tensors) digest.Update(std::as_bytes(std::span(t.data)));
  const std::string hex = digest.FinishHex();
  model.Config("\"format\":2", "\"format\":2,\"content_sha256\":\"" + hex + "\"");
  const VerifyReport sound = Verify(model);
  EXPECT_TRUE(sound.ok());
  EXPECT_TRUE(sound.digest_recorded);
  EXPECT_EQ(sound.content_sha256, hex);
  // One bit in a place where every value is valid.
  model.Find("layers.1.block_sparse_moe.experts.1.w1").data[3] ^= 1;
  const VerifyReport changed = Verify(model);
  ASSERT_EQ(changed.problems.size(), 1u);
  EXPECT_NE(changed.problems[0].message.find("content_sha256"), std::string::npos);
}

TEST(Verify, ManyProblemsAreCountedAndCapped) {
  RawModel model = SmallK3();
  uint64_t broken = 0;
  for (auto& t : model.tensors) {
    if (t.dtype == 1) t.data.back() = '\xff';
    // Matrices only: the values of vectors are checked when the file is opened.
    const bool matrix = t.dtype == 0 && t.dims.size() == 2 && t.dims[0] > 1;
    if (matrix && t.name != "vq_codebook") t.data.replace(0, 4, "\xff\xff\xff\xff");
    broken += t.dtype == 1 || (matrix && t.name != "vq_codebook") ? 1 : 0;
  }
  const VerifyReport report = Verify(model);
  EXPECT_EQ(report.problems_total, broken);
  EXPECT_EQ(report.problems.size(), std::min<size_t>(broken, VerifyReport::kMaxProblems));
}

TEST(Verify, CanBeCancelled) {
  const TempDirectory directory;
  const std::string path = directory.Write("model.bin", SmallK3().Assemble());
  VerifyOptions options;
  options.progress = [](uint64_t, uint64_t) { return false; };
  const auto report = VerifyFile(path, options);
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace mk
