// Benchmarks of small models: what is measured and told, not how fast it is.

#include "engine/bench/bench_model.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "engine/bench/report.h"
#include "tests/unit/model/golden_data.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

std::string Golden() {
  return LoadGolden("k3", "k3a").model_path;
}

BenchPlan Short() {
  BenchPlan plan;
  plan.contexts = {3, 70};
  plan.batches = {2};
  plan.prompts = {600};  // more than one forward pass
  plan.batch_context = 5;
  plan.time = std::chrono::milliseconds(5);
  return plan;
}

void ExpectMeasured(const BenchPoint& point) {
  EXPECT_GE(point.samples, kLeastSamples);
  EXPECT_GT(point.step_ms, 0);
  EXPECT_LE(point.step_ms_p10, point.step_ms);
  EXPECT_GE(point.step_ms_p90, point.step_ms);
  EXPECT_NEAR(point.tokens_per_s * point.ms_per_token, 1000, 1e-6);
  EXPECT_GT(point.gop_per_s, 0);
  EXPECT_GT(point.limit.tokens_per_s, 0);
  EXPECT_NEAR(point.share, point.tokens_per_s / point.limit.tokens_per_s, 1e-9);
}

TEST(Bench, MeasuresEveryPointOfThePlan) {
  const auto model = Load(Golden(), Precision::kQ8);
  const auto executor = MakeExecutor(2);
  std::set<std::string> named;
  double last = 0;
  const auto report =
      RunBench(*model, Precision::kQ8, *executor, Short(), [&](double done, std::string_view next) {
        EXPECT_GE(done, last);
        EXPECT_LE(done, 1);
        last = done;
        named.emplace(next);
        return true;
      });
  ASSERT_TRUE(report) << report.error().ToString();
  using Key = std::tuple<BenchKind, size_t, size_t>;
  std::vector<Key> keys;
  for (const BenchPoint& point : report->points) {
    keys.emplace_back(point.kind, point.tokens, point.batch);
    ExpectMeasured(point);
    const bool decodes = point.kind == BenchKind::kDecode || point.kind == BenchKind::kBatch;
    EXPECT_EQ(point.gb_per_s > 0, decodes);
  }
  const std::vector<Key> expected = {{BenchKind::kDecode, 3, 1},
                                     {BenchKind::kDecode, 70, 1},
                                     {BenchKind::kBatch, 5, 2},
                                     {BenchKind::kPrefill, 600, 1},
                                     {BenchKind::kFirstToken, 16, 1}};
  EXPECT_EQ(keys, expected);
  EXPECT_TRUE(named.contains("ceilings") && named.contains("prefill of 600"));
  ASSERT_EQ(report->ceilings.size(), 2u);
  EXPECT_EQ(report->ceilings[0].threads, 1u);
  EXPECT_EQ(report->ceilings[1].threads, 2u);
  for (const Ceilings& ceilings : report->ceilings) {
    EXPECT_GT(ceilings.read_gb_per_s, 0);
    EXPECT_GT(ceilings.cache_read_gb_per_s, 0);
    EXPECT_GT(ceilings.fma_gflop_per_s, 0);
    EXPECT_GT(ceilings.int8_gop_per_s, 0);
  }
  EXPECT_EQ(report->roof.peak_gop_per_s, report->ceilings[1].int8_gop_per_s);
}

TEST(Bench, StopsWhenItIsToldTo) {
  const auto model = Load(Golden());
  const auto executor = MakeExecutor(1);
  for (const char* at : {"ceilings", "decode at 3", "batch of 2", "first token after 16"}) {
    const auto report = RunBench(*model, Precision::kExact, *executor, Short(),
                                 [&](double, std::string_view next) { return next != at; });
    ASSERT_FALSE(report) << at;
    EXPECT_EQ(report.error().code, ErrorCode::kCancelled);
  }
}

TEST(Bench, NeedsThePrecision) {
  const auto model = Load(Golden());
  const auto executor = MakeExecutor(1);
  const auto report = RunBench(*model, Precision::kQ8, *executor, Short());
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
}

TEST(Bench, MemoryGrowsWithThePlan) {
  ModelInfo info;
  info.state_bytes = 1000;
  info.bytes_per_token = 10;
  const uint64_t small = BenchMemory(info, Short(), 2);
  EXPECT_GE(small, StreamSetBytes(2) + 2 * 2 * info.state_bytes);
  EXPECT_GE(BenchMemory(info, BenchPlan::Full(), 2), StreamSetBytes(2) + 8192 * 10 + 2000);
  EXPECT_GT(BenchMemory(info, Short(), 100), small);
}

}  // namespace
}  // namespace mk::test
