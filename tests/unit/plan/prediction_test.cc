#include "engine/plan/prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/plan/built_model.h"

namespace mk {
namespace {

ModelFootprint TinyFootprint() {
  const test::BuiltModel built("k3");
  const auto file = MkimFile::Open(built.path());
  EXPECT_TRUE(file);
  auto footprint = MeasureModel(*file, 256);
  EXPECT_TRUE(footprint) << footprint.error().ToString();
  footprint->info.fingerprint = "tiny";
  return *footprint;
}

// Layers that cost nothing, and kernels of round numbers.
MachineProfile SomeProfile() {
  MachineProfile profile;
  profile.kernels.threads = 4;
  profile.kernels.read_gb_per_s = 20;
  for (size_t p = 0; p < kPrecisions; ++p) profile.kernels.rates[p] = {10, 100, 5, 50, 2};
  return profile;
}

PlanMachine SomeMachine() {
  PlanMachine machine;
  machine.ram_bytes = uint64_t{1} << 40;
  machine.disk = {0.002, 500e6, 32};
  machine.cores = 4;
  return machine;
}

class Prediction : public testing::Test {
 protected:
  ModelPlanned Plan() {
    auto plan = PlanModel(model, profile, machine, question);
    EXPECT_TRUE(plan) << plan.error().ToString();
    return plan ? *plan : ModelPlanned();
  }

  double AllBytes() const {
    double sum = 0;
    for (const uint64_t bytes : model.expert_sizes) sum += static_cast<double>(bytes);
    return sum;
  }

  // Of reading so many experts of a layer, one read each: one begins when there is room for it.
  // Room is a sixteenth of the budget, but two experts and two blocks at least.
  double LayerSeconds(size_t experts, uint64_t budget) const {
    const uint64_t size = model.expert_sizes[32];
    const size_t at_once = std::max<uint64_t>(2 * size + 8192, budget / 16) / size;
    std::vector<double> ends;
    for (size_t i = 0; i < experts; ++i) {
      const double begin = i < at_once ? 0 : ends[i - at_once];
      const double ready = std::max(begin + 0.002, i == 0 ? 0 : ends.back());
      ends.push_back(ready + static_cast<double>(size) / 500e6);
    }
    return ends.back();
  }

  const ModelFootprint model = TinyFootprint();
  MachineProfile profile = SomeProfile();
  PlanMachine machine = SomeMachine();
  PlanQuestion question;
};

TEST_F(Prediction, TakesTheWorkOfATokenAtTheRatesOfTheKernels) {
  question.precision = Precision::kExact;
  question.prompt_tokens = 100;
  const TokenWork& work = model.In(Precision::kExact).work;
  const ComputeTime time = PredictCompute(model, profile, machine, question);
  const double spine = static_cast<double>(work.spine_bytes);
  const double decode = (spine + 2.0 * static_cast<double>(work.state_bytes)) / 10e9 +
                        static_cast<double>(work.expert_bytes) / 5e9;
  EXPECT_NEAR(time.decode_s, decode, decode * 1e-9);
  // Three of a layer's four experts.
  EXPECT_NEAR(time.decode_overlap_s, static_cast<double>(work.expert_bytes) / 5e9 * 3 / 4,
              decode * 1e-9);
  EXPECT_FALSE(time.measured);
  // Half of the cores: half of the arithmetic, and half of what is read.
  machine.cores = 2;
  const ComputeTime half = PredictCompute(model, profile, machine, question);
  EXPECT_NEAR(half.decode_s, 2 * decode, decode * 1e-9);
  EXPECT_NEAR(half.prompt_s, 2 * time.prompt_s, time.prompt_s * 1e-9);
  // Twice as many cores bring decoding nothing, unless the memory is known to be faster.
  machine.cores = 8;
  EXPECT_NEAR(PredictCompute(model, profile, machine, question).decode_s, decode, decode * 1e-9);
  machine.memory_gb_per_s = 40;
  EXPECT_NEAR(PredictCompute(model, profile, machine, question).decode_s, decode / 2,
              decode * 1e-9);
}

TEST_F(Prediction, ALayerCostsItsShare) {
  const ComputeTime bare = PredictCompute(model, profile, machine, question);
  profile.layer_costs["k3"] = {0.5, 0.25};
  const ComputeTime time = PredictCompute(model, profile, machine, question);
  EXPECT_NEAR(time.decode_s - bare.decode_s, 0.5 * 6, 1e-6);
  EXPECT_NEAR(time.prompt_s - bare.prompt_s, (0.5 + 0.25 * 512) * 6, 1e-6);
}

TEST_F(Prediction, TrustsARunOfTheSameModelMore) {
  const ComputeTime by_rates = PredictCompute(model, profile, machine, question);
  profile.SetModel({"tiny", Precision::kQ8, 4, 0.125, 0.25});
  const ComputeTime time = PredictCompute(model, profile, machine, question);
  EXPECT_TRUE(time.measured);
  EXPECT_NEAR(time.decode_overlap_s / time.decode_s, by_rates.decode_overlap_s / by_rates.decode_s,
              1e-9);
  EXPECT_EQ(time.decode_s, 0.125);
  EXPECT_EQ(time.prompt_s, 0.25 * 512);
  machine.cores = 3;  // it ran with four
  EXPECT_FALSE(PredictCompute(model, profile, machine, question).measured);
}

TEST_F(Prediction, SaysWhatFits) {
  const PlanMemory memory = PredictMemory(model, Precision::kQ8);
  using Verdict = ModelPlanned::Verdict;
  machine.ram_bytes = memory.whole();
  EXPECT_EQ(Plan().verdict, Verdict::kResident);
  EXPECT_FALSE(Plan().best);
  machine.ram_bytes -= 1;
  const ModelPlanned streamed = Plan();
  EXPECT_EQ(streamed.verdict, Verdict::kStream);
  ASSERT_TRUE(streamed.best);
  EXPECT_TRUE(streamed.best->fits);
  EXPECT_LE(streamed.best->memory_bytes, machine.ram_bytes);
  EXPECT_TRUE(streamed.rows.front().fits);
  EXPECT_FALSE(streamed.rows.back().fits);
  machine.ram_bytes = memory.streamed(memory.smallest_cache);
  EXPECT_EQ(Plan().verdict, Verdict::kStream);
  EXPECT_EQ(Plan().best->cache_bytes, memory.smallest_cache);
  machine.ram_bytes -= 1;
  EXPECT_EQ(Plan().verdict, Verdict::kTooLarge);
  EXPECT_TRUE(Plan().smaller.empty());
  // In floats it is too large where bytes fit.
  question.precision = Precision::kExact;
  machine.ram_bytes = memory.streamed(memory.smallest_cache);
  EXPECT_EQ(Plan().verdict, Verdict::kTooLarge);
  EXPECT_EQ(Plan().smaller, std::vector<Precision>{Precision::kQ8});
}

TEST_F(Prediction, NothingIsWaitedForWhereAllIsKept) {
  question.shares = {0.1, 0.25, 0.5, 0.75, 1.3};  // buffers of reads take some of it
  const ModelPlanned plan = Plan();
  ASSERT_EQ(plan.rows.size(), 5u);
  EXPECT_EQ(plan.rows.back().hit_rate, 1);
  EXPECT_EQ(plan.rows.back().stall_s, 0);
  EXPECT_NEAR(plan.rows.back().decode_tokens_per_s, 1 / plan.compute.decode_s, 1e-6);
  for (size_t i = 1; i < plan.rows.size(); ++i) {
    EXPECT_GE(plan.rows[i].hit_rate, plan.rows[i - 1].hit_rate);
    EXPECT_LE(plan.rows[i].stall_s, plan.rows[i - 1].stall_s);
  }
}

// Tokens that ask for four experts of every layer in turn: LRU keeps none of them in time.
TEST_F(Prediction, WaitsForALatencyAndTheBytesOfEveryLayer) {
  DemandTrace trace;
  trace.layers = model.info.layers;
  trace.experts = 32;
  for (size_t token = 0; token < 48; ++token) {
    for (size_t layer = 1; layer < trace.layers; ++layer) {
      for (size_t i = 0; i < 4; ++i) {
        trace.demands.push_back(static_cast<ExpertKey>(layer * 32 + (token * 4 + i) % 32));
      }
    }
  }
  question.trace = &trace;
  question.policy = CachePolicyKind::kLru;
  question.shares = {0.5, 1.3};
  const ModelPlanned plan = Plan();
  // The 24 tokens that count read every expert three times.
  const double bytes = AllBytes() * 3 / 24;
  const double stall =
      static_cast<double>(trace.layers - 1) * 0.002 + bytes / 500e6 - plan.compute.decode_overlap_s;
  EXPECT_EQ(plan.rows[0].hit_rate, 0);
  EXPECT_NEAR(plan.rows[0].stall_s, stall, 1e-9);
  EXPECT_NEAR(1 / plan.rows[0].decode_tokens_per_s, plan.compute.decode_s + stall, 1e-9);
  EXPECT_EQ(plan.rows[1].stall_s, 0);
}

TEST_F(Prediction, ReadsEveryExpertOfAPromptOncePerPiece) {
  // 600 tokens of four picks: all 32 experts of five layers, in two pieces.
  question.prompt_tokens = 600;
  question.skew = 0;
  question.shares = {0.1, 1.3};
  const ModelPlanned plan = Plan();
  const double sweep =
      5 * LayerSeconds(32, plan.rows[1].cache_bytes) - plan.compute.prompt_overlap_s / 2;
  EXPECT_NEAR(plan.rows[1].prompt_s - plan.compute.prompt_s, sweep, 1e-6);
  const double slow =
      5 * LayerSeconds(32, plan.rows[0].cache_bytes) - plan.compute.prompt_overlap_s / 2;
  EXPECT_GT(plan.rows[0].prompt_s - plan.compute.prompt_s, 1.5 * slow);
  EXPECT_LE(plan.rows[0].prompt_s - plan.compute.prompt_s, 2 * slow + 1e-6);
}

TEST_F(Prediction, LoadsAtTheSpeedOfDiskOrPacking) {
  machine.disk.bytes_per_s = 1000;
  const double all = static_cast<double>(model.spine_file_bytes + model.expert_file_bytes);
  EXPECT_NEAR(Plan().load_s, all / 1000, 1e-6);
  machine.disk.bytes_per_s = 1e15;
  const double floats = static_cast<double>(model.In(Precision::kExact).spine_bytes);
  EXPECT_NEAR(Plan().load_s, floats / 2e9, 1e-9);
}

TEST_F(Prediction, RefusesTheTraceOfAnotherModel) {
  DemandTrace trace;
  trace.layers = 2;
  trace.experts = 33;
  for (const ExpertKey wrong : {ExpertKey{33 + 32}, ExpertKey{0}}) {  // no such expert; dense layer
    trace.demands = {wrong};
    question.trace = &trace;
    const auto plan = PlanModel(model, profile, machine, question);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, ErrorCode::kIncompatible);
  }
}

}  // namespace
}  // namespace mk
