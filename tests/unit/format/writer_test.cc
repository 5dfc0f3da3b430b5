#include "engine/format/mkim_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "engine/base/file.h"
#include "raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

std::vector<TensorSpec> SpecsOf(const RawModel& model) {
  std::vector<TensorSpec> specs;
  for (const auto& t : model.tensors) specs.push_back({t.name, *DTypeFromCode(t.dtype), t.dims});
  return specs;
}

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

size_t FilesIn(const TempDirectory& directory) {
  const std::filesystem::directory_iterator begin(directory.Path("."));
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

TEST(Writer, ProducesTheBytesOfTheFormat) {
  const TempDirectory directory;
  const RawModel model = SmallK3();
  MkimWriter::Options options;
  options.align = ExpertAlign::k64;
  auto writer =
      MkimWriter::Create(directory.Path("out.bin"), model.config, SpecsOf(model), options);
  ASSERT_TRUE(writer.has_value()) << writer.error().ToString();
  // Backwards, to show that the order does not matter.
  for (size_t i = model.tensors.size(); i-- > 0;) {
    ASSERT_TRUE((*writer)->WriteBlob(i, Bytes(model.tensors[i].data)).has_value());
  }
  EXPECT_FALSE(std::filesystem::exists(directory.Path("out.bin")));
  const Status committed = (*writer)->Commit();
  ASSERT_TRUE(committed.has_value()) << committed.error().ToString();
  EXPECT_EQ(ReadWholeFile(directory.Path("out.bin"), 1 << 24).value(), model.Assemble());
  EXPECT_EQ(FilesIn(directory), 1u);
}

TEST(Writer, WorkedExampleByteForByte) {
  const TempDirectory directory;
  RawModel model;
  model.config = "{\"hidden\":2,\"n_layers\":1}";
  model.tensors.push_back(
      {"norm.weight", 0, {2}, test::F32Bytes({1.0f, -0.5f}), {}, {}, {}, {}, {}});
  model.tensors.push_back(
      {"layers.0.block_sparse_moe.experts.0.w1", 1, {1, 32}, "", {}, {}, {}, {}, 4096});
  for (int i = 0; i < 16; ++i) {
    model.tensors[1].data += static_cast<char>((2 * i + 1) % 16 << 4 | (2 * i) % 16);
  }
  model.tensors[1].data += '\x7e';
  MkimWriter::Options options;
  options.align = ExpertAlign::k4096;
  options.verify.checks = OpenOptions::Checks::kContainer;
  auto writer =
      MkimWriter::Create(directory.Path("out.bin"), model.config, SpecsOf(model), options);
  ASSERT_TRUE(writer.has_value()) << writer.error().ToString();
  EXPECT_EQ((*writer)->layout().file_bytes, 4113u);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE((*writer)->WriteBlob(i, Bytes(model.tensors[i].data)).has_value());
  }
  ASSERT_TRUE((*writer)->Commit().has_value());
  EXPECT_EQ(ReadWholeFile(directory.Path("out.bin"), 1 << 24).value(), model.Assemble());
}

TEST(Writer, BlobsCanBeWrittenInPiecesByThreads) {
  const TempDirectory directory;
  const RawModel model = SmallK3();
  auto writer = MkimWriter::Create(directory.Path("out.bin"), model.config, SpecsOf(model));
  ASSERT_TRUE(writer.has_value());
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < model.tensors.size(); ++i) {
          const auto bytes = Bytes(model.tensors[i].data);
          const size_t first = bytes.size() * t / 4;
          const size_t last = bytes.size() * (t + 1) / 4;
          EXPECT_TRUE(
              (*writer)->WriteBlobRange(i, first, bytes.subspan(first, last - first)).has_value());
        }
      });
    }
  }
  ASSERT_TRUE((*writer)->Commit().has_value());
  const auto file = MkimFile::Open(directory.Path("out.bin"));
  ASSERT_TRUE(file.has_value());
  for (const auto& tensor : model.tensors) {
    std::string blob(tensor.data.size(), '\0');
    const TensorEntry* entry = (*file)->FindTensor(tensor.name);
    ASSERT_TRUE((*file)->ReadBlob(*entry, std::as_writable_bytes(std::span(blob))).has_value());
    EXPECT_EQ(blob, tensor.data) << tensor.name;
  }
}

TEST(Writer, MissingBytesAreNamedAndLeaveNoFile) {
  const TempDirectory directory;
  const RawModel model = SmallK3();
  {
    auto writer = MkimWriter::Create(directory.Path("out.bin"), model.config, SpecsOf(model));
    ASSERT_TRUE(writer.has_value());
    for (size_t i = 1; i < model.tensors.size(); ++i) {
      ASSERT_TRUE((*writer)->WriteBlob(i, Bytes(model.tensors[i].data)).has_value());
    }
    const Status committed = (*writer)->Commit();
    ASSERT_FALSE(committed.has_value());
    EXPECT_NE(committed.error().message.find("embed_tokens.weight"), std::string::npos);
    EXPECT_FALSE((*writer)->WriteBlob(0, Bytes("short")).has_value());
    EXPECT_FALSE((*writer)->WriteBlobRange(0, 40 * 24 * 4, Bytes("x")).has_value());
    EXPECT_FALSE((*writer)->WriteBlob(1000, Bytes("x")).has_value());
  }
  EXPECT_EQ(FilesIn(directory), 0u);
}

TEST(Writer, AFileThatDoesNotVerifyKeepsTheOldOne) {
  const TempDirectory directory;
  directory.Write("out.bin", "the old file");
  RawModel model = SmallK3();
  model.Erase("norm.weight");
  {
    auto writer = MkimWriter::Create(directory.Path("out.bin"), model.config, SpecsOf(model));
    ASSERT_TRUE(writer.has_value());
    for (size_t i = 0; i < model.tensors.size(); ++i) {
      ASSERT_TRUE((*writer)->WriteBlob(i, Bytes(model.tensors[i].data)).has_value());
    }
    const Status committed = (*writer)->Commit();
    ASSERT_FALSE(committed.has_value());
    EXPECT_NE(committed.error().message.find("norm.weight"), std::string::npos);
  }
  EXPECT_EQ(ReadWholeFile(directory.Path("out.bin"), 100).value(), "the old file");
  EXPECT_EQ(FilesIn(directory), 1u);
}

TEST(Writer, BadSpecsAreRefused) {
  const auto plan = [](std::vector<TensorSpec> specs) {
    return PlanLayout("{}", specs, ExpertAlign::kAuto).has_value();
  };
  EXPECT_TRUE(plan({{"a", DType::kF32, {1}}}));
  EXPECT_FALSE(plan({{"", DType::kF32, {1}}}));
  EXPECT_FALSE(plan({{std::string(513, 'a'), DType::kF32, {1}}}));
  EXPECT_FALSE(plan({{"a\n", DType::kF32, {1}}}));
  EXPECT_FALSE(plan({{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}));
  EXPECT_FALSE(plan({{"a", DType::kF32, {}}}));
  EXPECT_FALSE(plan({{"a", DType::kF32, {1, 0}}}));
  EXPECT_FALSE(plan({{"a", DType::kF32, {1, 1, 1, 1, 1}}}));
  EXPECT_FALSE(plan({{"a", DType::kMxfp4, {4, 40}}}));
  EXPECT_FALSE(plan({{"a", DType::kVq1, {64}}}));
}

// Three matrices of [rows, 128] MXFP4 per expert after a spine tensor of 5 floats.
MkimLayout LayoutOf(uint32_t rows, ExpertAlign align) {
  std::vector<TensorSpec> specs = {{"norm.weight", DType::kF32, {5}}};
  for (int e = 0; e < 2; ++e) {
    const std::string prefix = "layers.0.block_sparse_moe.experts." + std::to_string(e) + ".";
    specs.push_back({prefix + "w1", DType::kMxfp4, {rows, 128}});
    specs.push_back({prefix + "w2", DType::kMxfp4, {128, rows}});
    specs.push_back({prefix + "w3", DType::kMxfp4, {rows, 128}});
  }
  return PlanLayout("{}", specs, align).value();
}

TEST(Writer, AnExpertIsOneRecord) {
  const MkimLayout small = LayoutOf(64, ExpertAlign::kAuto);  // records of 13056 bytes
  EXPECT_EQ(small.blobs[2].offset, small.blobs[1].offset + 4352);
  EXPECT_EQ(small.blobs[3].offset, small.blobs[2].offset + 4352);
  EXPECT_EQ(small.blobs[4].offset, small.blobs[3].offset + 4352);
  EXPECT_EQ(small.expert_bytes, 6u * 4352);
  EXPECT_EQ(small.spine_bytes, 20u);
  const MkimLayout paged = LayoutOf(64, ExpertAlign::k4096);
  EXPECT_EQ(paged.blobs[1].offset % 4096, 0u);
  EXPECT_EQ(paged.blobs[4].offset, paged.blobs[1].offset + 16384);
  EXPECT_EQ(paged.blobs[2].offset, paged.blobs[1].offset + 4352);
  const MkimLayout large = LayoutOf(512, ExpertAlign::kAuto);  // records of 104448 bytes
  EXPECT_EQ(large.blobs[1].offset % 4096, 0u);
  EXPECT_EQ(large.blobs[4].offset % 4096, 0u);
  EXPECT_EQ(LayoutOf(512, ExpertAlign::k64).blobs[1].offset % 4096 % 64, 0u);
  EXPECT_LT(LayoutOf(512, ExpertAlign::k64).blobs[1].offset, 4096u);
}

}  // namespace
}  // namespace mk
