// Loads with a folder of prepared spines: same bytes as without, whatever is in the folder.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/format/digest.h"
#include "engine/format/spine_cache.h"
#include "engine/k3/spine.h"
#include "engine/spine/spine_load.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(MK_TEST_DATA) + "/golden/k3/k3b/model.bin";

class SpineLoads : public ::testing::TestWithParam<Precision> {
 protected:
  SpineLoads() {
    options_.precision = GetParam();
    options_.spine_cache.directory = directory_.Path("spines");
    options_.spine_cache.smallest = 0;
    options_.spine_cache.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(line);
    };
  }

  std::shared_ptr<const Model> LoadIt(const std::string& path = kModel) const {
    auto model = LoadModel(path, options_);
    EXPECT_TRUE(model) << model.error().ToString();
    return model ? *model : nullptr;
  }
  // Times that a spine was written, or was found not to be writable.
  size_t Ends() {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(log_.begin(), log_.end(), [](const std::string& line) {
      return line.starts_with("wrote") || line.find("not kept") != std::string::npos;
    }));
  }
  void WaitForEnd(size_t before) {
    while (Ends() == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Loads, and waits until the folder has what it came without.
  void Fill(const std::string& path = kModel) {
    const size_t before = Ends();
    const auto model = LoadIt(path);
    ASSERT_FALSE(model->spine_cached(GetParam()));
    WaitForEnd(before);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(options_.spine_cache.directory)) {
      files.push_back(entry.path().string());
    }
    return files;
  }

  // The spine as FillSpine brings it into memory.
  struct Memory {
    std::vector<std::byte> bytes;
    bool cached = false;
    std::optional<SpineKey> keep;
  };
  Memory ReadSpineOf(const std::string& path, const SpineCacheOptions& cache) const {
    const auto file = MkimFile::Open(path);
    const k3::K3Shape shape((*file)->config());
    SpineBuilder count(**file, nullptr);
    k3::LayOutSpine(count, shape, GetParam());
    auto memory = PageBuffer::Allocate(count.Finish()->bytes);
    SpineBuilder builder(**file, memory->data());
    k3::LayOutSpine(builder, shape, GetParam());
    const auto plan = builder.Finish();
    const auto pool = ThreadPool::Create(2);
    LoadProgress progress({}, 1, path);
    const std::string fingerprint = *(*file)->Fingerprint();
    const SpineSource source{**file, fingerprint, GetParam(), k3::kSpineVersion};
    const auto spine =
        FillSpine(source, *plan, {memory->data(), memory->size()}, cache, **pool, progress);
    EXPECT_TRUE(spine) << spine.error().ToString();
    return {{memory->data(), memory->data() + memory->size()}, spine->cached, spine->keep};
  }

  TempDirectory directory_;
  std::mutex mutex_;
  std::vector<std::string> log_;
  LoadOptions options_;
};

TEST_P(SpineLoads, EveryByteIsTheSame) {
  const Memory made = ReadSpineOf(kModel, {});
  EXPECT_FALSE(made.cached);
  EXPECT_FALSE(made.keep);
  ASSERT_FALSE(made.bytes.empty());
  const Memory to_keep = ReadSpineOf(kModel, options_.spine_cache);
  EXPECT_FALSE(to_keep.cached);
  ASSERT_TRUE(to_keep.keep);
  KeepSpine(options_.spine_cache, *to_keep.keep, to_keep.bytes, [] { return true; });
  const Memory kept = ReadSpineOf(kModel, options_.spine_cache);
  EXPECT_TRUE(kept.cached);
  EXPECT_FALSE(kept.keep);
  EXPECT_TRUE(kept.bytes == made.bytes);
}

// A block is found to be damaged after others were read into the weights.
TEST_P(SpineLoads, DamagedWeightsAreMadeAnew) {
  const Memory made = ReadSpineOf(kModel, options_.spine_cache);
  // Under the right name and with sound checksums up to the end, but of nothing but ones.
  KeepSpine(options_.spine_cache, *made.keep,
            std::vector<std::byte>(made.bytes.size(), std::byte{0xff}), [] { return true; });
  std::fstream file(Files().at(0), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put(0);
  file.close();
  log_.clear();
  const Memory again = ReadSpineOf(kModel, options_.spine_cache);
  EXPECT_FALSE(again.cached);
  EXPECT_TRUE(again.keep);
  EXPECT_TRUE(again.bytes == made.bytes);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("damaged"), std::string::npos) << log_[0];
  log_.clear();
  Fill();
  EXPECT_TRUE(LoadIt()->spine_cached(GetParam()));
}

TEST_P(SpineLoads, ModelsComputeTheSame) {
  Fill();
  ASSERT_EQ(Files().size(), 1u);
  const auto model = LoadIt();
  EXPECT_TRUE(model->spine_cached(GetParam()));
  EXPECT_EQ(model->resident_bytes(), Load(kModel, GetParam())->resident_bytes());
  const std::vector<int32_t> tokens = RandomTokens(70, model->info().vocab, 1);
  SequenceOptions sequence;
  sequence.precision = GetParam();
  const auto executor = MakeExecutor(2);
  const auto plain = Load(kModel, GetParam());
  EXPECT_EQ(Feed(*model, *executor, *MakeSequence(*model, sequence), tokens),
            Feed(*plain, *executor, *MakeSequence(*plain, sequence), tokens));
}

TEST_P(SpineLoads, PrecisionsThatArePreparedLaterUseItToo) {
  for (const bool cached : {false, true}) {
    const auto model = Load(kModel);
    const size_t before = Ends();
    ASSERT_TRUE(model->Prepare(GetParam(), options_));
    EXPECT_EQ(model->spine_cached(GetParam()), cached);
    EXPECT_FALSE(model->spine_cached(Precision::kExact));
    if (!cached) WaitForEnd(before);
  }
}

TEST_P(SpineLoads, AModelFileThatChangedIsReadAnew) {
  const ScratchModel copy(kModel);
  Fill(copy.path());
  EXPECT_TRUE(LoadIt(copy.path())->spine_cached(GetParam()));
  // Same size, and the same fingerprint unless a sample of it lies here.
  copy.PatchFloat("norm.weight", 3, 42.0f);
  fs::last_write_time(copy.path(), fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const Memory changed = ReadSpineOf(copy.path(), options_.spine_cache);
  EXPECT_FALSE(changed.cached);
  EXPECT_TRUE(changed.bytes == ReadSpineOf(copy.path(), {}).bytes);
  EXPECT_FALSE(changed.bytes == ReadSpineOf(kModel, {}).bytes);
}

TEST_P(SpineLoads, ManyAtOnce) {
  const std::vector<std::byte> bytes = ReadSpineOf(kModel, {}).bytes;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        if (LoadIt() == nullptr) ++wrong;
        if (ReadSpineOf(kModel, options_.spine_cache).bytes != bytes) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  // Whole under its name, and nothing else is left.
  for (const std::string& path : Files()) EXPECT_TRUE(path.ends_with(".spine")) << path;
}

TEST_P(SpineLoads, FoldersThatCannotBeWrittenDoNoHarm) {
  options_.spine_cache.directory = "/proc/none/spines";
  Fill();
  Fill();
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_NE(log_[0].find("not kept"), std::string::npos) << log_[0];
}

TEST_P(SpineLoads, SmallSpinesAreNotKept) {
  options_.spine_cache.smallest = SpineCacheOptions().smallest;
  EXPECT_FALSE(LoadIt()->spine_cached(GetParam()));
  EXPECT_FALSE(fs::exists(options_.spine_cache.directory));
  EXPECT_TRUE(log_.empty());
}

TEST_P(SpineLoads, CancelledWhileItIsRead) {
  Fill();
  for (int last = 1; last < 4; ++last) {
    LoadOptions options = options_;
    int calls = 0;
    options.progress = [&](double) { return ++calls < last; };
    const auto model = LoadModel(kModel, options);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, ErrorCode::kCancelled);
  }
  EXPECT_TRUE(LoadIt()->spine_cached(GetParam()));
}

// What lies in spines that were kept by older builds. When this fails, the bytes of a spine have
// changed: raise kSpineVersion, so that no build takes the spines of another, and change the
// digest.
TEST_P(SpineLoads, BytesBelongToAVersion) {
  const auto file = MkimFile::Open(kModel);
  const k3::K3Shape shape((*file)->config());
  std::vector<std::byte> spine = ReadSpineOf(kModel, {}).bytes;
  SpineBuilder builder(**file, spine.data());
  const auto weights = k3::LayOutSpine(builder, shape, GetParam());
  for (const k3::LayerWeights& layer : weights->layers) {
    // Exponentials are the library's: their last bit is not ours to tell.
    auto* const rates = const_cast<float*>(layer.kda.decay_rate.data());
    std::fill_n(rates, layer.kda.decay_rate.size(), 0.0f);
  }
  EXPECT_EQ(k3::kSpineVersion, 1u);
  EXPECT_EQ(Xxh3Of(spine),
            GetParam() == Precision::kQ8 ? 9962149278013560401u : 12391804176590672792u);
}

INSTANTIATE_TEST_SUITE_P(Precisions, SpineLoads,
                         ::testing::Values(Precision::kBf16, Precision::kQ8),
                         [](const auto& test) { return std::string(PrecisionName(test.param)); });

TEST(SpineCacheOfExact, IsNone) {
  const TempDirectory directory;
  LoadOptions options;
  options.spine_cache.directory = directory.Path("spines");
  options.spine_cache.smallest = 0;
  for (int i = 0; i < 2; ++i) {
    const auto model = LoadModel(kModel, options);
    ASSERT_TRUE(model);
    EXPECT_FALSE((*model)->spine_cached(Precision::kExact));
  }
  EXPECT_FALSE(fs::exists(options.spine_cache.directory));
}

}  // namespace
}  // namespace mk::test
