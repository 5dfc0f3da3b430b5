// A scan that goes on where an earlier one was ended.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/format/digest.h"
#include "engine/format/verify.h"
#include "engine/format/verify_checkpoint.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

// With a recorded digest, so that it is read twice, and with three problems: two of values in the
// first half of the file and one of the digest.
RawModel Unsound() {
  RawModel model = SmallK3();
  model.Config("\"format\":2", "\"format\":2,\"content_sha256\":\"" + std::string(64, '0') + "\"");
  model.Find("layers.1.block_sparse_moe.experts.0.w3").data[1024 + 17] = '\xff';
  model.Find("layers.3.mlp.up_proj.weight").data.replace(40, 4, "\xff\xff\xff\xff");
  return model;
}

VerifyReport Verify(const std::string& path, const VerifyOptions& options = {}) {
  auto report = VerifyFile(path, options);
  EXPECT_TRUE(report.has_value()) << report.error().ToString();
  return report.value_or(VerifyReport());
}

// All checkpoints of a scan: one after every tensor of both passes.
std::vector<std::string> CheckpointsOf(const std::string& path) {
  std::vector<std::string> all;
  VerifyOptions options;
  options.save = [&all](std::string one) { all.push_back(std::move(one)); };
  options.save_interval = std::chrono::milliseconds(0);
  Verify(path, options);
  return all;
}

void ExpectSame(const VerifyReport& a, const VerifyReport& b) {
  EXPECT_EQ(a.file_bytes, b.file_bytes);
  EXPECT_EQ(a.tensors, b.tensors);
  EXPECT_EQ(a.values_checked, b.values_checked);
  EXPECT_EQ(a.xxh3_128, b.xxh3_128);
  EXPECT_EQ(a.content_sha256, b.content_sha256);
  EXPECT_EQ(a.problems_total, b.problems_total);
  ASSERT_EQ(a.problems.size(), b.problems.size());
  for (size_t i = 0; i < a.problems.size(); ++i) {
    EXPECT_EQ(a.problems[i].tensor, b.problems[i].tensor);
    EXPECT_EQ(a.problems[i].message, b.problems[i].message);
    EXPECT_EQ(a.problems[i].count, b.problems[i].count);
  }
}

class VerifyResume : public ::testing::Test {
 protected:
  const TempDirectory directory_;
  const RawModel model_ = Unsound();
  const std::string path_ = directory_.Write("model.bin", model_.Assemble());
  const VerifyReport whole_ = Verify(path_);
};

TEST_F(VerifyResume, EveryCheckpointLeadsToTheSameReport) {
  ASSERT_EQ(whole_.problems_total, 3u);
  const std::vector<std::string> all = CheckpointsOf(path_);
  ASSERT_EQ(all.size(), 2 * model_.tensors.size());
  uint64_t before = 0;
  for (const std::string& checkpoint : all) {
    VerifyOptions options;
    options.checkpoint = checkpoint;
    uint64_t first = 0;
    options.progress = [&first](uint64_t done, uint64_t total) {
      if (first == 0) first = done;
      EXPECT_LE(done, total);
      return true;
    };
    const VerifyReport report = Verify(path_, options);
    ExpectSame(report, whole_);
    EXPECT_GT(report.resumed_bytes, before) << "it reads again what was read";
    EXPECT_TRUE(first == 0 || first > report.resumed_bytes);
    before = report.resumed_bytes;
  }
}

TEST_F(VerifyResume, AChangedFileStartsOver) {
  const std::vector<std::string> all = CheckpointsOf(path_);
  VerifyOptions options;
  options.checkpoint = all[all.size() / 2];
  ASSERT_GT(Verify(path_, options).resumed_bytes, 0u);
  // The same bytes with another time; then the same time on another file.
  struct stat before {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  const timespec later[2] = {{0, UTIME_OMIT}, {before.st_mtim.tv_sec + 1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), later, 0), 0);
  const VerifyReport touched = Verify(path_, options);
  EXPECT_EQ(touched.resumed_bytes, 0u);
  ExpectSame(touched, whole_);

  const std::string copy = directory_.Write("copy.bin", model_.Assemble());
  const timespec same[2] = {{0, UTIME_OMIT}, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, copy.c_str(), same, 0), 0);
  EXPECT_EQ(Verify(copy, options).resumed_bytes, 0u);
}

// Written in place with its time set back: what the header says is another model.
TEST_F(VerifyResume, AnotherHeaderStartsOver) {
  const std::vector<std::string> all = CheckpointsOf(path_);
  struct stat before {};
  ASSERT_EQ(::stat(path_.c_str(), &before), 0);
  RawModel other = model_;
  other.Config(std::string(64, '0'), std::string(64, '1'));
  const int fd = ::open(path_.c_str(), O_WRONLY);
  const std::string bytes = other.Assemble();
  ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(fd);
  const timespec same[2] = {{0, UTIME_OMIT}, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), same, 0), 0);
  VerifyOptions options;
  options.checkpoint = all.back();
  const VerifyReport report = Verify(path_, options);
  EXPECT_EQ(report.resumed_bytes, 0u);
  EXPECT_NE(report.xxh3_128, whole_.xxh3_128);
}

std::string Changed(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST_F(VerifyResume, WhatIsNoCheckpointStartsOver) {
  const std::vector<std::string> all = CheckpointsOf(path_);
  const std::string& scanning = all[3];
  const std::string& hashing = all.back();
  const std::string tensors = std::to_string(model_.tensors.size());
  std::string many;
  for (size_t i = 0; i < VerifyReport::kMaxProblems; ++i) {
    many += R"({"tensor":"","message":"","count":1},)";
  }
  const std::vector<std::string> bad = {
      "no JSON",
      "{}",
      "[]",
      scanning.substr(0, scanning.size() / 2),
      Changed(scanning, "\"version\":1", "\"version\":2"),
      Changed(scanning, "\"next\":4", "\"next\":-4"),
      Changed(scanning, "\"next\":4", "\"next\":\"4\""),
      Changed(hashing, "\"next\":" + tensors, "\"next\":" + tensors + "1"),
      Changed(scanning, "\"digest\":\"", "\"digest\":\"00"),
      Changed(scanning, "\"digest\":\"", "\"digest\":\"0"),
      Changed(scanning, "\"digest\":\"", "\"digest\":\"xx"),
      Changed(scanning, "\"scanned\":false", "\"scanned\":true"),
      Changed(scanning, "\"problems\":[", "\"problems\":[{\"tensor\":1},"),
      Changed(scanning, "\"problems\":[", "\"problems\":[7,"),
      Changed(hashing, "\"problems\":[", "\"problems\":[" + many),
  };
  for (const std::string& text : bad) {
    VerifyOptions options;
    options.checkpoint = text;
    const VerifyReport report = Verify(path_, options);
    EXPECT_EQ(report.resumed_bytes, 0u) << text.substr(0, 300);
    ExpectSame(report, whole_);
  }
}

TEST_F(VerifyResume, CheckpointsComeNoOftenerThanTheInterval) {
  size_t saved = 0;
  VerifyOptions options;
  options.save = [&saved](const std::string&) { ++saved; };
  options.save_interval = std::chrono::hours(1);
  Verify(path_, options);
  EXPECT_EQ(saved, 0u);
}

}  // namespace
}  // namespace mk
