// Precisions of DeepSeek-V4 models: what they have in common, how far they are from each other, the
// same bits on every instruction set, and what lies in prepared spines.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/dsv4/spine.h"
#include "engine/format/digest.h"
#include "engine/format/mkim_file.h"
#include "engine/spine/spine_load.h"
#include "tests/reference/random_dsv4.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/kernels/kernel_test.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

// Damped, so that a value that rounds to the other side does not move everything after it.
class Dsv4Precision : public testing::Test {
 protected:
  Dsv4Precision() {
    reference::WriteRandomDsv4(path_, reference::AwkwardDsv4Config(), 5, {.outputs = 0.1});
  }

  std::vector<float> RunIn(const std::string& path, Precision precision,
                           std::span<const int32_t> tokens) const {
    const auto model = Load(path, precision);
    const auto executor = MakeExecutor(2);
    SequenceOptions options;
    options.precision = precision;
    const auto sequence = MakeSequence(*model, options);
    const size_t prompt = tokens.size() * 3 / 4;
    std::vector<float> logits = Feed(*model, *executor, *sequence, tokens.first(prompt));
    const std::vector<float> rest =
        FeedInSegments(*model, *executor, *sequence, tokens.subspan(prompt), 1);
    logits.insert(logits.end(), rest.begin(), rest.end());
    return logits;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_.Path("model.bin");
};

// Root of the mean square of the differences, by that of `b`.
double RelativeError(std::span<const float> a, std::span<const float> b) {
  double error = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    square += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / square);
}

TEST_F(Dsv4Precision, OthersAreNearExactAndNotEqual) {
  const std::vector<int32_t> tokens = RandomTokens(60, 330, 4);
  const std::vector<float> exact = RunIn(path_, Precision::kExact, tokens);
  const double bf16 = RelativeError(RunIn(path_, Precision::kBf16, tokens), exact);
  const double q8 = RelativeError(RunIn(path_, Precision::kQ8, tokens), exact);
  EXPECT_GT(bf16, 1e-5);
  EXPECT_LT(bf16, 0.02);
  EXPECT_GT(q8, 1e-5);
  EXPECT_LT(q8, 0.05);
  std::printf("relative error of logits: bf16 %.1e, q8 %.1e\n", bf16, q8);
}

TEST_F(Dsv4Precision, Bf16EqualsExactWhereTheWeightsAreBf16) {
  const ScratchModel copy(path_);
  const auto file = MkimFile::Open(path_);
  ASSERT_TRUE(file);
  for (const TensorEntry& entry : (*file)->tensors()) {
    if (entry.dtype != DType::kF32) continue;
    std::vector<float> values(entry.elements());
    ASSERT_TRUE((*file)->ReadF32(entry, values));
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    for (size_t i = 0; i < bytes.size(); i += 4) bytes[i] = bytes[i + 1] = 0;
    copy.Patch(std::string(entry.name), 0, bytes);
  }
  const std::vector<int32_t> tokens = RandomTokens(120, 330, 3);
  ExpectSameBits(RunIn(copy.path(), Precision::kBf16, tokens),
                 RunIn(copy.path(), Precision::kExact, tokens));
}

TEST_F(Dsv4Precision, EveryInstructionSetGivesTheSameBits) {
  const std::vector<int32_t> tokens = RandomTokens(48, 330, 5);
  for (size_t p = 0; p < kPrecisions; ++p) {
    const auto precision = static_cast<Precision>(p);
    SCOPED_TRACE(PrecisionName(precision));
    const std::vector<float> expected = RunIn(path_, precision, tokens);
    ForEachTarget([&] { ExpectSameBits(RunIn(path_, precision, tokens), expected); });
  }
}

TEST_F(Dsv4Precision, PreparedLaterGivesTheSameBits) {
  const std::vector<int32_t> tokens = RandomTokens(40, 330, 6);
  const auto model = Load(path_);
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  SequenceOptions options;
  options.precision = Precision::kQ8;
  const auto executor = MakeExecutor(2);
  const std::vector<float> later = Feed(*model, *executor, *MakeSequence(*model, options), tokens);
  const auto at_once = Load(path_, Precision::kQ8);
  ExpectSameBits(Feed(*at_once, *executor, *MakeSequence(*at_once, options), tokens), later);
}

// What lies in spines that were kept by older builds. When this fails, the bytes of a spine have
// changed: raise kSpineVersion, so that no build takes the spines of another, and change the
// digest.
TEST_F(Dsv4Precision, BytesOfASpineBelongToAVersion) {
  const auto file = MkimFile::Open(path_);
  ASSERT_TRUE(file);
  const dsv4::Dsv4Shape shape((*file)->config());
  for (const auto& [precision, digest] : {std::pair(Precision::kBf16, 7132677347963429831u),
                                          std::pair(Precision::kQ8, 16254395137358771645u)}) {
    SpineBuilder count(**file, nullptr);
    dsv4::LayOutSpine(count, shape, precision);
    auto memory = PageBuffer::Allocate(count.Finish()->bytes);
    ASSERT_TRUE(memory);
    SpineBuilder builder(**file, memory->data());
    dsv4::LayOutSpine(builder, shape, precision);
    const auto plan = builder.Finish();
    const auto pool = ThreadPool::Create(1);
    LoadProgress progress({}, 1, path_);
    const std::string fingerprint = *(*file)->Fingerprint();
    ASSERT_TRUE(FillSpine({**file, fingerprint, precision, dsv4::kSpineVersion}, *plan,
                          {memory->data(), memory->size()}, {}, **pool, progress));
    EXPECT_EQ(dsv4::kSpineVersion, 1u);
    EXPECT_EQ(Xxh3Of({memory->data(), memory->size()}), digest) << PrecisionName(precision);
  }
}

}  // namespace
}  // namespace mk::test
