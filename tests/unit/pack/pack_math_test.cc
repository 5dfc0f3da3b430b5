// Arithmetic on packs, and how packs differ.

#include "engine/pack/pack_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/pack/pack_diff.h"
#include "engine/pack/pack_reader.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/pack/pack_bytes.h"

namespace mk::test {
namespace {

class PackMath : public testing::TestWithParam<PackFormat> {
 protected:
  PackMath() : model_(Kind::kK3) {
    for (uint32_t i = 0; i < 3; ++i) Save(*model_, Path(i), 20 + i, GetParam());
  }

  std::string Path(size_t index) const { return Path("in" + std::to_string(index)); }
  std::string Path(const std::string& name) const { return directory_.Path(name + ".mkmem"); }
  PackTarget Out() const { return {Path("out"), true}; }
  void Save(const Model& model, const std::string& path, uint32_t seed, PackFormat format) {
    const auto sequence = MakeSequence(model);
    PackContents contents;
    contents.tokens = RandomTokens(30, model.info().vocab, seed);
    contents.logits = Feed(model, *executor_, *sequence, contents.tokens);
    contents.logits.resize(model.info().vocab);
    SavePackOptions options;
    options.format = format;
    const auto saved = SavePack(path, model, *sequence, contents, options);
    ASSERT_TRUE(saved) << saved.error().ToString();
  }
  // All values of one kind of array, in order.
  static std::vector<float> Values(const std::string& path, StateArray array) {
    const auto pack = PackReader::Open(path);
    EXPECT_TRUE(pack);
    std::vector<float> all;
    for (const PackSection& section : pack->info().sections) {
      if (!section.Is(array)) continue;
      const auto values = *pack->ReadFloats(section);
      all.insert(all.end(), values.begin(), values.end());
    }
    EXPECT_FALSE(all.empty());
    return all;
  }
  static std::vector<float> Matrices(const std::string& path) {
    return Values(path, StateArray::kKdaMatrix);
  }
  static double Norm(const std::vector<float>& values) {
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * value;
    return std::sqrt(sum);
  }
  StateArray RowsArray() const {
    return GetParam() == PackFormat::kMkmem1 ? StateArray::kExpandedKeys : StateArray::kLatentRows;
  }
  // What every result has in common.
  void CheckMarks(const Result<PackInfo>& info, bool decayed) {
    ASSERT_TRUE(info) << info.error().ToString();
    EXPECT_FALSE(info->has_logits());
    EXPECT_FALSE(info->has_tokens());
    EXPECT_TRUE(VerifyPack(Path("out")));
    const auto pack = LoadPack(Path("out"), *model_);
    ASSERT_TRUE(pack) << pack.error().ToString();
    EXPECT_TRUE(pack->contents.logits.empty());
    EXPECT_TRUE(pack->contents.tokens.empty());
    EXPECT_EQ(Values(Path("out"), RowsArray()), Values(Path(0), RowsArray()));
    if (GetParam() == PackFormat::kMkmem1) return;
    EXPECT_TRUE(pack->info.experimental());
    EXPECT_EQ(pack->info.decayed(), decayed);
    EXPECT_NE(pack->info.Find(PackSectionType::kProvenanceTokens), nullptr);
    const auto lineage = nlohmann::json::parse(pack->contents.lineage);
    EXPECT_EQ(lineage["parents"][0], DescribePack(Path(0))->state_id);
    EXPECT_NE(info->state_id, DescribePack(Path(0))->state_id);
  }

  TempDirectory directory_;
  RandomModel model_;
  std::unique_ptr<Executor> executor_ = MakeExecutor(1);
};

TEST_P(PackMath, AHalfLifeHalves) {
  CheckMarks(DecayPack(Path(0), 3, 3, Out()), true);
  const double before = Norm(Matrices(Path(0)));
  EXPECT_NEAR(Norm(Matrices(Path("out"))) / before, 0.5, 1e-6);
  ASSERT_TRUE(DecayPack(Path(0), 3, 6, Out()));
  EXPECT_NEAR(Norm(Matrices(Path("out"))) / before, 0.25, 1e-6);
  // In place, and not at all.
  ASSERT_TRUE(DecayPack(Path("out"), 3, 0, Out()));
  EXPECT_NEAR(Norm(Matrices(Path("out"))) / before, 0.25, 1e-6);
  ASSERT_TRUE(DecayPack(Path(0), 3, 1, Out()));
  const auto a = Matrices(Path(0)), b = Matrices(Path("out"));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(b[i], a[i] * 0.793700516f);
  EXPECT_EQ(Values(Path("out"), StateArray::kKdaConv), Values(Path(0), StateArray::kKdaConv));
}

TEST_P(PackMath, AMergeAddsInOrder) {
  CheckMarks(MergePacks({Path(0), Path(1), Path(2)}, {}, Out()), false);
  const auto a = Matrices(Path(0)), b = Matrices(Path(1)), c = Matrices(Path(2));
  const auto sum = Matrices(Path("out"));
  ASSERT_TRUE(MergePacks({Path(0), Path(1), Path(2)}, {true, {}}, Out()));
  const auto average = Matrices(Path("out"));
  for (size_t i = 0; i < a.size(); ++i) {
    if (GetParam() == PackFormat::kMkmem1) {  // as the reference: in f32
      ASSERT_EQ(sum[i], (a[i] + b[i]) + c[i]);
      ASSERT_EQ(average[i], sum[i] / 3.0f);
    } else {
      const double exact = static_cast<double>(a[i]) + b[i] + c[i];
      ASSERT_EQ(sum[i], static_cast<float>(exact));
      ASSERT_EQ(average[i], static_cast<float>(exact / 3));
    }
  }
  EXPECT_EQ(Values(Path("out"), StateArray::kKdaConv), Values(Path(0), StateArray::kKdaConv));
}

TEST_P(PackMath, TheControlHasTheValuesInAnotherOrder) {
  ASSERT_TRUE(MergePacks({Path(0), Path(1)}, {false, 2}, Out()));
  const auto sum = Matrices(Path("out"));
  ASSERT_TRUE(MergePacks({Path(0), Path(1)}, {}, Out()));
  EXPECT_NE(sum, Matrices(Path("out")));
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<float> shuffled = values;
  ShuffleControl(shuffled, 2);
  EXPECT_NE(shuffled, values);
  std::vector<float> other = values;
  ShuffleControl(other, 3);
  EXPECT_NE(shuffled, other);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, values);
  // By hand: x of the first two steps for N = 2 and three values.
  std::vector<float> three = {0, 1, 2};
  ShuffleControl(three, 2);
  std::vector<float> expected = {0, 1, 2};
  uint64_t x = 0x9E3779B97F4A7C17ull;
  for (const size_t i : {2, 1}) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::swap(expected[i], expected[x % (i + 1)]);
  }
  EXPECT_EQ(three, expected);
}

TEST_P(PackMath, ABlendWeighsBoth) {
  CheckMarks(BlendPacks(Path(0), Path(1), 0.25, Out()), false);
  for (const StateArray array : {StateArray::kKdaMatrix, StateArray::kKdaConv}) {
    const auto a = Values(Path(0), array), b = Values(Path(1), array);
    const auto blend = Values(Path("out"), array);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(blend[i], 0.25f * a[i] + 0.75f * b[i]);
  }
  ASSERT_TRUE(BlendPacks(Path(0), Path(1), 1, Out()));
  EXPECT_EQ(Matrices(Path("out")), Matrices(Path(0)));
  ASSERT_TRUE(BlendPacks(Path(0), Path(1), 0, Out()));
  EXPECT_EQ(Matrices(Path("out")), Matrices(Path(1)));
}

TEST_P(PackMath, ParametersOutOfRangeAreRefused) {
  const auto bad = [](const Result<PackInfo>& info) {
    return !info && info.error().code == ErrorCode::kInvalidArgument;
  };
  const double nan = std::nan("");
  for (const double half_life : {0.0, -1.0, nan, HUGE_VAL}) {
    EXPECT_TRUE(bad(DecayPack(Path(0), half_life, 1, Out()))) << half_life;
  }
  for (const double units : {-1.0, nan, HUGE_VAL}) {
    EXPECT_TRUE(bad(DecayPack(Path(0), 1, units, Out()))) << units;
  }
  for (const double alpha : {-0.1, 1.1, nan}) {
    EXPECT_TRUE(bad(BlendPacks(Path(0), Path(1), alpha, Out()))) << alpha;
  }
  EXPECT_TRUE(bad(MergePacks({Path(0)}, {}, Out())));
  EXPECT_TRUE(bad(MergePacks({}, {}, Out())));
  for (const size_t number : {0, 1, 3}) {
    EXPECT_TRUE(bad(MergePacks({Path(0), Path(1)}, {false, number}, Out()))) << number;
  }
  WriteBytes(Path("text"), "no pack");
  EXPECT_TRUE(bad(DecayPack(Path(0), 1, 1, {Path("text"), true})));
  EXPECT_TRUE(bad(DecayPack(Path(0), 1, 1, {Path(1), false})));
  EXPECT_EQ(directory_.Files(), 4u) << "a refused operation left a file";
}

TEST_P(PackMath, PacksThatDoNotBelongTogetherAreRefused) {
  const auto code = [&](const std::string& other) {
    const auto merged = MergePacks({Path(0), other}, {}, Out());
    return merged ? std::string("merged") : std::string(ErrorCodeName(merged.error().code));
  };
  const PackFormat other_format =
      GetParam() == PackFormat::kMkmem1 ? PackFormat::kMkmem2 : PackFormat::kMkmem1;
  Save(*model_, Path("format"), 1, other_format);
  EXPECT_EQ(code(Path("format")), "incompatible");
  if (GetParam() == PackFormat::kMkmem2) {  // the old format cannot tell them apart
    const RandomModel other(Kind::kK3, Precision::kExact, 6);
    Save(*other, Path("model"), 1, GetParam());
    EXPECT_EQ(code(Path("model")), "incompatible");
    const RandomModel dsv4(Kind::kDsv4);
    Save(*dsv4, Path("dsv4"), 1, GetParam());
    EXPECT_EQ(code(Path("dsv4")), "unsupported");
    EXPECT_EQ(DecayPack(Path("dsv4"), 1, 1, Out()).error().code, ErrorCode::kUnsupported);
  }
  EXPECT_EQ(code(Path("none")), "not_found");
  std::string torn = ReadBytes(Path(1));
  torn.resize(torn.size() / 2);
  WriteBytes(Path("torn"), torn);
  EXPECT_EQ(code(Path("torn")), "corrupt");
}

TEST_P(PackMath, ADiffFindsWhatDiffers) {
  auto diff = DiffPacks(Path(0), Path(0));
  ASSERT_TRUE(diff);
  EXPECT_TRUE(diff->identical);
  EXPECT_EQ(diff->unmatched, 0u);
  ASSERT_TRUE(DecayPack(Path(0), 1, 1, Out()));
  diff = DiffPacks(Path(0), Path("out"));
  ASSERT_TRUE(diff);
  EXPECT_FALSE(diff->identical);
  EXPECT_TRUE(diff->same_model);
  for (const SectionDifference& difference : diff->sections) {
    if (difference.section.Is(StateArray::kKdaMatrix)) {
      EXPECT_NEAR(difference.relative, 0.5, 1e-6);
      EXPECT_GT(difference.largest, 0);
      EXPECT_GT(difference.different, 0u);
    } else {
      EXPECT_EQ(difference.different, 0u) << SectionTypeName(difference.section.type);
    }
  }
  diff = DiffPacks(Path(0), Path(1));
  ASSERT_TRUE(diff);
  EXPECT_FALSE(diff->identical);
}

TEST_P(PackMath, WhatAModelSaysAfterEachPackIsCompared) {
  ASSERT_TRUE(DecayPack(Path(0), 1, 0, Out()));
  const std::vector<int32_t> prompt = RandomTokens(70, model_->info().vocab, 9);
  const auto said = ComparePacks({Path(0), Path(1), Path("out")}, *model_, *executor_, prompt, 20);
  ASSERT_TRUE(said) << said.error().ToString();
  EXPECT_EQ(said->equal[0], 20u);
  EXPECT_EQ(said->equal[2], 20u);  // not aged at all
  EXPECT_EQ(said->tokens[0], said->tokens[2]);
  size_t equal = 0;
  for (size_t i = 0; i < 20; ++i) equal += said->tokens[0][i] == said->tokens[1][i];
  EXPECT_EQ(said->equal[1], equal);
  // A result of arithmetic cannot be continued from logits.
  EXPECT_FALSE(ComparePacks({Path("out")}, *model_, *executor_, {}, 1));
  EXPECT_TRUE(ComparePacks({Path(0)}, *model_, *executor_, {}, 1));
}

INSTANTIATE_TEST_SUITE_P(Formats, PackMath,
                         testing::Values(PackFormat::kMkmem1, PackFormat::kMkmem2));

}  // namespace
}  // namespace mk::test
