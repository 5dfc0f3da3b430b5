// Precisions: what they have in common, how far they are from each other, and how they come into
// memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/format/mkim_file.h"
#include "tests/unit/model/run_model.h"
#include "tests/unit/model/scratch_model.h"

namespace mk::test {
namespace {

const std::string kRandomModel = std::string(MK_TEST_DATA) + "/golden/k3/k3b/model.bin";
// Trained.
const std::string kStoryModel = std::string(MK_SOURCE_DIR) + "/models/story-k3.bin";

std::unique_ptr<Sequence> Make(const Model& model, Precision precision) {
  SequenceOptions options;
  options.precision = precision;
  return MakeSequence(model, options);
}

std::vector<float> RunIn(const std::string& path, Precision precision,
                         std::span<const int32_t> tokens) {
  const auto model = Load(path, precision);
  const auto executor = MakeExecutor(2);
  return Feed(*model, *executor, *Make(*model, precision), tokens);
}

bool SameBytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Root of the mean square of the differences, by that of `b`.
double RelativeError(std::span<const float> a, std::span<const float> b) {
  double error = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    square += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(error / square);
}

TEST(Precision, NamesAreParsedBack) {
  for (const Precision p : {Precision::kExact, Precision::kBf16, Precision::kQ8}) {
    EXPECT_EQ(ParsePrecision(PrecisionName(p)), p);
  }
  EXPECT_EQ(ParsePrecision("f64"), std::nullopt);
  EXPECT_EQ(ParsePrecision(""), std::nullopt);
}

// A copy of a model with every f32 weight of the spine cut to the upper half of its bits.
class Bf16Copy {
 public:
  explicit Bf16Copy(const std::string& source) : model_(source) {
    const auto file = MkimFile::Open(source);
    for (const TensorEntry& entry : (*file)->tensors()) {
      if (entry.dtype != DType::kF32) continue;
      std::vector<float> values(entry.elements());
      EXPECT_TRUE((*file)->ReadF32(entry, values));
      std::vector<uint8_t> bytes(values.size() * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      for (size_t i = 0; i < bytes.size(); i += 4) bytes[i] = bytes[i + 1] = 0;
      model_.Patch(std::string(entry.name), 0, bytes);
    }
  }
  const std::string& path() const { return model_.path(); }

 private:
  ScratchModel model_;
};

TEST(Precision, Bf16EqualsExactWhereTheWeightsAreBf16) {
  const Bf16Copy copy(kRandomModel);
  const auto model = Load(kRandomModel);
  const std::vector<int32_t> tokens = RandomTokens(150, model->info().vocab, 3);
  EXPECT_TRUE(SameBytes(RunIn(copy.path(), Precision::kBf16, tokens),
                        RunIn(copy.path(), Precision::kExact, tokens)));
}

TEST(Precision, OthersAreNearExactAndNotEqual) {
  const auto model = Load(kStoryModel);
  const std::vector<int32_t> tokens = RandomTokens(60, model->info().vocab, 4);
  const std::vector<float> exact = RunIn(kStoryModel, Precision::kExact, tokens);
  const double q8 = RelativeError(RunIn(kStoryModel, Precision::kQ8, tokens), exact);
  EXPECT_GT(q8, 1e-5);
  EXPECT_LT(q8, 0.05);
  const std::vector<int32_t> others = RandomTokens(20, Load(kRandomModel)->info().vocab, 5);
  const double bf16 = RelativeError(RunIn(kRandomModel, Precision::kBf16, others),
                                    RunIn(kRandomModel, Precision::kExact, others));
  EXPECT_GT(bf16, 1e-5);
  EXPECT_LT(bf16, 0.05);
}

TEST(Precision, MustBePreparedBeforeUse) {
  const auto model = Load(kRandomModel);
  const uint64_t before = model->resident_bytes();
  SequenceOptions options;
  options.precision = Precision::kQ8;
  const auto refused = model->NewSequence(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  EXPECT_TRUE(model->prepared(Precision::kQ8));
  EXPECT_TRUE(model->NewSequence(options));
  const uint64_t after = model->resident_bytes();
  EXPECT_GT(after, before);
  // Once more changes nothing.
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  EXPECT_EQ(model->resident_bytes(), after);
}

TEST(Precision, PrepareHeedsTheMemoryLimitAndTheWishToStop) {
  const auto model = Load(kRandomModel);
  LoadOptions small;
  small.admit = [](uint64_t bytes) -> Status {
    EXPECT_GT(bytes, 1000U);
    return Fail(ErrorCode::kOutOfMemory, "no room");
  };
  const Status refused = model->Prepare(Precision::kBf16, small);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  LoadOptions stop;
  stop.progress = [](double) { return false; };
  const Status cancelled = model->Prepare(Precision::kBf16, stop);
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(model->prepared(Precision::kBf16));
  EXPECT_TRUE(model->Prepare(Precision::kBf16, {}));
}

TEST(Precision, APreparedModelEqualsALoadedOne) {
  const auto model = Load(kRandomModel);
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  const std::vector<int32_t> tokens = RandomTokens(70, model->info().vocab, 6);
  const auto executor = MakeExecutor(2);
  EXPECT_TRUE(SameBytes(Feed(*model, *executor, *Make(*model, Precision::kQ8), tokens),
                        RunIn(kRandomModel, Precision::kQ8, tokens)));
}

// Remembers which item and position every hidden state came from.
class Positions final : public ForwardObserver {
 public:
  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float>) override {
    if (layer == 0) seen.emplace_back(item, position);
  }
  std::vector<std::pair<size_t, size_t>> seen;
};

TEST(Precision, SequencesOfAllPrecisionsShareABatch) {
  const auto model = Load(kRandomModel);
  ASSERT_TRUE(model->Prepare(Precision::kBf16, {}));
  ASSERT_TRUE(model->Prepare(Precision::kQ8, {}));
  const auto executor = MakeExecutor(2);
  const Precision order[] = {Precision::kQ8, Precision::kExact, Precision::kQ8, Precision::kBf16};
  const size_t vocab = model->info().vocab;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> logits;
  std::vector<ForwardItem> items;
  for (size_t i = 0; i < std::size(order); ++i) {
    sequences.push_back(Make(*model, order[i]));
    tokens.push_back(RandomTokens(5 + i, vocab, static_cast<uint32_t>(i)));
    logits.emplace_back(tokens.back().size() * vocab);
  }
  for (size_t i = 0; i < std::size(order); ++i) {
    items.push_back({sequences[i].get(), tokens[i], LogitsWanted::kAll, logits[i]});
  }
  Positions positions;
  ASSERT_TRUE(model->Forward(*executor, items, &positions));
  for (size_t i = 0; i < std::size(order); ++i) {
    EXPECT_EQ(sequences[i]->length(), tokens[i].size());
    EXPECT_TRUE(SameBytes(logits[i], RunIn(kRandomModel, order[i], tokens[i]))) << i;
  }
  std::sort(positions.seen.begin(), positions.seen.end());
  const std::vector<std::pair<size_t, size_t>> expected = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  EXPECT_EQ(positions.seen, expected);
}

}  // namespace
}  // namespace mk::test
