// What a header tells, against models that are loaded, and against the published sizes.

#include "engine/model/footprint.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "engine/plan/real_shapes.h"
#include "tests/unit/plan/built_model.h"

namespace mk {
namespace {

TEST(Footprint, IsWhatALoadedModelHolds) {
  for (const std::string arch : {"k3", "dsv4"}) {
    const test::BuiltModel built(arch);
    const auto file = MkimFile::Open(built.path());
    ASSERT_TRUE(file) << file.error().ToString();
    const auto footprint = MeasureModel(*file, 1000);
    ASSERT_TRUE(footprint) << footprint.error().ToString();
    for (size_t p = 0; p < kPrecisions; ++p) {
      const auto precision = static_cast<Precision>(p);
      uint64_t admitted = 0;
      LoadOptions options;
      options.precision = precision;
      options.admit = [&](uint64_t bytes) {
        admitted = bytes;
        return Status();
      };
      const auto model = LoadModel(built.path(), options);
      ASSERT_TRUE(model) << model.error().ToString();
      const auto& here = footprint->In(precision);
      EXPECT_EQ(footprint->table_bytes + here.spine_bytes + footprint->expert_bytes, admitted);
      const auto work = (*model)->Work(precision);
      ASSERT_TRUE(work);
      EXPECT_EQ(here.work.spine_bytes, work->spine_bytes);
      EXPECT_EQ(here.work.expert_bytes, work->expert_bytes);
      EXPECT_EQ(here.work.all_expert_bytes, work->all_expert_bytes);
      EXPECT_EQ(here.work.state_bytes, work->state_bytes);
      EXPECT_EQ(here.work.context_bytes, work->context_bytes);
      EXPECT_EQ(here.work.multiply_adds, work->multiply_adds);
      EXPECT_EQ(here.work.head_multiply_adds, work->head_multiply_adds);
      EXPECT_EQ(here.work.context_multiply_adds, work->context_multiply_adds);
      EXPECT_EQ(footprint->sequence_bytes, (*model)->state_bytes(1000));
      EXPECT_EQ(footprint->info.layers, (*model)->info().layers);
      EXPECT_EQ(footprint->info.parameters, (*model)->info().parameters);
      EXPECT_EQ(footprint->info.top_k, (*model)->info().top_k);
    }
    // With the least budget for its experts it can be loaded; with a byte less it cannot.
    for (const uint64_t less : {0u, 1u}) {
      uint64_t admitted = 0;
      LoadOptions options;
      options.stream.emplace().budget = footprint->smallest_stream_budget - less;
      options.admit = [&](uint64_t bytes) {
        admitted = bytes;
        return Status();
      };
      EXPECT_EQ(LoadModel(built.path(), options).has_value(), less == 0);
      EXPECT_EQ(admitted, footprint->table_bytes + footprint->In(Precision::kExact).spine_bytes +
                              footprint->stream_table_bytes + options.stream->budget);
    }
    const uint64_t sum = std::accumulate(footprint->expert_sizes.begin(),
                                         footprint->expert_sizes.end(), uint64_t{0});
    EXPECT_EQ(sum, footprint->expert_file_bytes);
    EXPECT_EQ(footprint->spine_file_bytes, (*file)->resources().spine_file_bytes);
    // Experts of this size lie packed, at any multiple of 64.
    for (size_t i = 0; i < footprint->expert_sizes.size(); ++i) {
      const TensorEntry* gate =
          (*file)->Expert(static_cast<uint32_t>(i / footprint->info.experts),
                          static_cast<uint32_t>(i % footprint->info.experts), ExpertPart::kGate);
      if (gate == nullptr) {
        EXPECT_EQ(footprint->expert_read_bytes[i], 0u);
        continue;
      }
      std::set<uint64_t> blocks;
      for (uint64_t b = 0; b < footprint->expert_sizes[i]; b += 64) {
        blocks.insert((gate->offset + b) / 4096);
      }
      EXPECT_EQ(footprint->expert_read_bytes[i], blocks.size() * 4096) << i;
    }
  }
}

// streaming.md section 1 and k3.md section 7.
TEST(RealShapes, HaveThePublishedSizes) {
  const auto k3 = RealShape("k3");
  ASSERT_TRUE(k3) << k3.error().ToString();
  const auto footprint = MeasureModel(*k3, 4096);
  ASSERT_TRUE(footprint) << footprint.error().ToString();
  EXPECT_EQ(footprint->info.layers, 93u);
  EXPECT_EQ(footprint->moe_layers(), 92u);
  EXPECT_EQ(footprint->info.experts, 896u);
  EXPECT_EQ(footprint->info.top_k, 16u);
  EXPECT_EQ(footprint->expert_file_bytes, uint64_t{82'432} * 17'547'264);
  EXPECT_EQ(footprint->expert_sizes[0], 0u);
  EXPECT_EQ(footprint->expert_sizes[896], 17'547'264u);
  EXPECT_EQ(footprint->expert_read_bytes[896], 17'547'264u);
  EXPECT_NEAR(static_cast<double>(footprint->spine_file_bytes) / 4, 56.7e9, 0.1e9);
  // 69 KDA layers of 6 733 824 bytes, and 24 MLA layers of 2304 bytes per token.
  EXPECT_EQ(footprint->sequence_bytes, 69u * 6'733'824u + 4096u * 24 * 2304);
  EXPECT_NEAR(static_cast<double>(footprint->In(Precision::kExact).work.expert_bytes), 25.8e9,
              0.1e9);
}

TEST(RealShapes, KnowDeepSeek) {
  const auto dsv4 = RealShape("dsv4");
  ASSERT_TRUE(dsv4) << dsv4.error().ToString();
  const auto footprint = MeasureModel(*dsv4, 4096);
  ASSERT_TRUE(footprint) << footprint.error().ToString();
  EXPECT_EQ(footprint->info.layers, 43u);
  EXPECT_EQ(footprint->expert_file_bytes, uint64_t{11'008} * 13'369'344);
  EXPECT_NEAR(static_cast<double>(footprint->In(Precision::kExact).work.expert_bytes), 3.45e9,
              0.01e9);
  // 284B parameters in all, 7.3B of them in the spine.
  EXPECT_NEAR(static_cast<double>(footprint->info.parameters), 284e9, 1e9);
  EXPECT_NEAR(static_cast<double>(footprint->spine_file_bytes) / 4, 7.3e9, 0.1e9);
}

TEST(RealShapes, AreNoFiles) {
  const auto k3 = RealShape("dsv4");
  ASSERT_TRUE(k3);
  std::vector<std::byte> blob((*k3)->tensors()[0].size > 1024 ? 1024 : 1);
  EXPECT_FALSE((*k3)->ReadBlobRange((*k3)->tensors()[0], 0, blob));
  EXPECT_EQ(RealShape("k4").error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace mk
