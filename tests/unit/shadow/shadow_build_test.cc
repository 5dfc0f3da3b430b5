// Sidecars made of models of both architectures, against what the codecs and the definition give.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/build/build_model.h"
#include "engine/format/mkim_file.h"
#include "engine/format/vq1.h"
#include "engine/shadow/expert_values.h"
#include "engine/shadow/shadow_builder.h"
#include "engine/shadow/shadow_experts.h"
#include "tests/unit/format/raw_model.h"

namespace mk {
namespace {

using test::RawModel;
using test::SmallK3;
using test::TempDirectory;

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string BuildTiny(const TempDirectory& folder, const std::string& arch, uint64_t seed = 0) {
  BuildOptions options;
  options.arch = arch;
  options.preset = "tiny";
  options.seed = seed;
  options.path = folder.Path(arch + std::to_string(seed) + ".bin");
  const auto built = BuildModel(options);
  EXPECT_TRUE(built) << built.error().ToString();
  return options.path;
}

ShadowReport Build(const std::string& model, const ShadowOptions& options) {
  auto report = BuildShadows(model, options);
  EXPECT_TRUE(report) << report.error().ToString();
  return report.value_or(ShadowReport());
}

ShadowOptions Options(uint32_t version, uint32_t stages, int threads = 2) {
  ShadowOptions options;
  options.version = version;
  options.stages = stages;
  options.threads = threads;
  options.sample = 3000;
  return options;
}

std::shared_ptr<const MkimFile> OpenModel(const std::string& path) {
  auto file = MkimFile::Open(path);
  EXPECT_TRUE(file) << file.error().ToString();
  return *file;
}

std::unique_ptr<ShadowExperts> LoadShadows(const MkimFile& model) {
  auto pool = ThreadPool::Create(2);
  auto file = ShadowExperts::Find(model);
  EXPECT_TRUE(file) << file.error().ToString();
  auto shadows = ShadowExperts::Load(*file, model, **pool);
  EXPECT_TRUE(shadows) << shadows.error().ToString();
  EXPECT_EQ((*shadows)->resident_bytes(), ShadowExperts::Measure(file->info()));
  return std::move(*shadows);
}

// The shadow of a matrix as floats.
std::vector<float> Values(const ExpertMatrix& w) {
  std::vector<float> values;
  for (size_t i = 0; i < w.rows * w.cols; ++i) {
    float sum = 0;
    for (size_t s = 0; s < w.stages; ++s) {
      const size_t entry = w.packed[i / 16 * w.stages + s];
      sum += w.codebook[s * kVq1CodebookFloats + entry * 16 + i % 16];
    }
    values.push_back(sum);
  }
  return values;
}

// Compares the shadows of a model with its weights.
class Check {
 public:
  explicit Check(const std::string& path)
      : model_(OpenModel(path)), values_(ExpertValues::Open(*model_)) {
    shadows_ = LoadShadows(*model_);
  }

  // Every byte is the nearest entry of the codebook before the gain, and the error is as told.
  void Run(const ShadowReport& report) {
    for (size_t i = 0; i < report.info.layers.size(); ++i) {
      const uint32_t layer = report.info.layers[i];
      ASSERT_TRUE(shadows_->Has(layer));
      for (uint32_t e = 0; e < report.info.experts; ++e) {
        const ExpertWeights w = shadows_->Get(layer, e);
        Matrix(*model_->Expert(layer, e, ExpertPart::kGate), w.gate, report.info);
        Matrix(*model_->Expert(layer, e, ExpertPart::kDown), w.down, report.info);
        Matrix(*model_->Expert(layer, e, ExpertPart::kUp), w.up, report.info);
      }
    }
    EXPECT_EQ(matrices_, report.matrices);
    EXPECT_NEAR(error_ / static_cast<double>(matrices_), report.info.relative_error, 1e-5);
    EXPECT_NEAR(std::sqrt(energy_ / shadow_energy_), 1.0, report.info.version == 1 ? 0.6 : 1e-4);
  }

 private:
  void Matrix(const TensorEntry& entry, const ExpertMatrix& w, const ShadowInfo& info) {
    ASSERT_EQ(entry.shape[0], w.rows);
    ASSERT_EQ(entry.shape[1], w.cols);
    std::vector<std::byte> raw;
    std::vector<float> weights(w.rows * w.cols);
    ASSERT_TRUE(values_->Read(entry, raw, weights));
    const std::vector<float> shadow = Values(w);
    double wrong = 0, sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double difference = double{weights[i]} - double{shadow[i]} / info.gain;
      wrong += difference * difference;
      sum += double{weights[i]} * double{weights[i]};
      shadow_energy_ += double{shadow[i]} * double{shadow[i]};
    }
    energy_ += sum;
    error_ += std::sqrt(wrong / sum);
    ++matrices_;
    if (info.version == 1) Nearest(weights, w);
  }

  void Nearest(const std::vector<float>& weights, const ExpertMatrix& w) {
    for (size_t g = 0; g < weights.size() / 16; ++g) {
      const std::span<const float, 16> group(&weights[g * 16], 16);
      ASSERT_EQ(w.packed[g], NearestVq1(group, {w.codebook, kVq1CodebookSize}));
    }
  }

  std::shared_ptr<const MkimFile> model_;
  Result<ExpertValues> values_;
  std::unique_ptr<ShadowExperts> shadows_;
  uint64_t matrices_ = 0;
  double error_ = 0;
  double energy_ = 0;
  double shadow_energy_ = 0;
};

class Architectures : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Both, Architectures, testing::Values("k3", "dsv4"));

TEST_P(Architectures, ShadowsAreTheNearestToTheWeights) {
  const TempDirectory folder;
  const std::string model = BuildTiny(folder, GetParam());
  for (const auto& [version, stages] : {std::pair{1u, 1u}, {2u, 1u}, {2u, 2u}}) {
    SCOPED_TRACE(testing::Message() << "version " << version << ", stages " << stages);
    const ShadowReport report = Build(model, Options(version, stages));
    EXPECT_EQ(report.path, model + ".shadows");
    EXPECT_EQ(report.info.file_bytes(), std::filesystem::file_size(report.path));
    EXPECT_LT(report.info.relative_error, stages == 1 ? 0.85 : 0.68);
    EXPECT_EQ(report.info.gain > 1.05, version == 2);
    Check(model).Run(report);
  }
}

TEST_P(Architectures, ResumedAndThreadedRunsGiveTheSameBytes) {
  const TempDirectory folder;
  const std::string model = BuildTiny(folder, GetParam());
  for (const uint32_t version : {1u, 2u}) {
    ShadowOptions options = Options(version, version, 1);
    options.out = folder.Path("whole");
    Build(model, options);
    const std::string whole = Content(options.out);
    options.out = folder.Path("cut");
    options.save_after = std::chrono::milliseconds(0);
    std::filesystem::remove(options.out);
    // Ended after every layer once.
    uint64_t resumed = 0;
    std::string last;
    for (int run = 0; run < 20; ++run) {
      bool saved = false;
      options.threads = 1 + run % 3;
      options.checkpoint = last;
      options.save = [&](std::string checkpoint) {
        last = std::move(checkpoint);
        saved = true;
      };
      options.progress = [&](const ShadowProgress&) { return !saved; };
      const auto report = BuildShadows(model, options);
      if (report) {
        resumed = report->resumed_layers;
        break;
      }
      ASSERT_EQ(report.error().code, ErrorCode::kCancelled);
      EXPECT_FALSE(std::filesystem::exists(options.out));
      EXPECT_TRUE(std::filesystem::exists(options.out + ".partial"));
    }
    EXPECT_GT(resumed, 0u);
    EXPECT_TRUE(Content(options.out) == whole);
    EXPECT_FALSE(std::filesystem::exists(options.out + ".partial"));
  }
}

TEST(BuildShadows, AnythingButWhatWasKeptBeginsAnew) {
  const TempDirectory folder;
  const std::string model = BuildTiny(folder, "k3");
  ShadowOptions options = Options(2, 1);
  options.out = folder.Path("whole");
  Build(model, options);
  const std::string whole = Content(options.out);
  options.out = folder.Path("cut");
  options.save_after = std::chrono::milliseconds(0);
  std::string checkpoint;
  options.save = [&](std::string one) { checkpoint = std::move(one); };
  options.progress = [&](const ShadowProgress&) { return checkpoint.empty(); };
  ASSERT_FALSE(BuildShadows(model, options));
  const std::string partial = Content(options.out + ".partial");
  options.progress = nullptr;
  options.save = nullptr;
  // A damaged codebook, damaged data, an unfinished file that is gone, a checkpoint that is none.
  for (const size_t at : {size_t{300}, partial.size() / 2, size_t{0}}) {
    std::string bytes = at == 0 ? "" : partial;
    if (at != 0) bytes[at == 300 ? 300 : 16384 + 4096 + 10] ^= 1;
    folder.Write("cut.partial", bytes);
    options.checkpoint = at == 0 ? "{\"version\": 2}" : checkpoint;
    const ShadowReport report = Build(model, options);
    EXPECT_EQ(report.resumed_layers, 0u) << at;
    EXPECT_TRUE(Content(options.out) == whole);
  }
  folder.Write("cut.partial", partial);
  options.checkpoint = checkpoint;
  EXPECT_EQ(Build(model, options).resumed_layers, 1u);
  EXPECT_TRUE(Content(options.out) == whole);
}

// Experts of all four types in one file.
TEST(BuildShadows, ReadsExpertsOfAllTypes) {
  const TempDirectory folder;
  const std::string model = folder.Write("mixed.bin", SmallK3().Assemble());
  for (const uint32_t version : {1u, 2u}) {
    const ShadowReport report = Build(model, Options(version, version));
    Check(model).Run(report);
  }
}

TEST(BuildShadows, RefusesWhatCannotBe) {
  const TempDirectory folder;
  const std::string model = BuildTiny(folder, "k3");
  EXPECT_EQ(BuildShadows(folder.Path("none"), Options(2, 1)).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(BuildShadows(model, Options(3, 1)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(BuildShadows(model, Options(1, 2)).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(BuildShadows(model, Options(2, 3)).error().code, ErrorCode::kInvalidArgument);
  ShadowOptions options = Options(2, 1);
  options.out = model;  // is replaced by nothing but shadows
  EXPECT_EQ(BuildShadows(model, options).error().code, ErrorCode::kInvalidArgument);
  options.out = folder.Path("no/folder");
  EXPECT_EQ(BuildShadows(model, options).error().code, ErrorCode::kNotFound);
  options.out = folder.Path("out");
  options.progress = [](const ShadowProgress&) { return false; };
  EXPECT_EQ(BuildShadows(model, options).error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(std::filesystem::exists(options.out + ".partial"));
}

TEST(BuildShadows, OneAtATimeMakesAFile) {
  const TempDirectory folder;
  const std::string model = BuildTiny(folder, "k3");
  ShadowOptions options = Options(2, 1);
  bool tried = false;
  options.progress = [&](const ShadowProgress&) {
    if (tried) return true;
    tried = true;
    const auto second = BuildShadows(model, Options(2, 1));
    EXPECT_FALSE(second);
    EXPECT_NE(second.error().message.find("somebody else"), std::string::npos);
    return true;
  };
  Build(model, options);
  EXPECT_TRUE(tried);
}

TEST(ShadowExperts, RefusesShadowsOfOtherModels) {
  const TempDirectory folder;
  const auto one = OpenModel(BuildTiny(folder, "k3", 1));
  const auto missing = ShadowExperts::Find(*one);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().hint.find("mk shadow " + one->path()), std::string::npos);
  const auto two = OpenModel(BuildTiny(folder, "k3", 2));
  const auto other = OpenModel(BuildTiny(folder, "dsv4"));
  const std::string shadows = Build(one->path(), Options(2, 1)).path;
  EXPECT_TRUE(ShadowExperts::Find(*one, shadows));
  for (const auto& model : {two, other}) {
    const auto found = ShadowExperts::Find(*model, shadows);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::kIncompatible);
    EXPECT_NE(found.error().hint.find("--out " + shadows), std::string::npos);
  }
  // Version 1 knows no more than shapes.
  Build(one->path(), Options(1, 1));
  EXPECT_TRUE(ShadowExperts::Find(*two, shadows));
  EXPECT_FALSE(ShadowExperts::Find(*other, shadows));
}

}  // namespace
}  // namespace mk
