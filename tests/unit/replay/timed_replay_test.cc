#include "engine/replay/timed_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

#include "engine/replay/replay.h"
#include "tests/unit/replay/random_trace.h"

namespace mk {
namespace {

using test::RandomTrace;

// Read i of a queue of d begins when read i - d has ended; transfers follow each other.
TEST(DiskModel, QueuesSharesLatencyAndTransfersInTurn) {
  std::mt19937 random(1);
  for (const size_t depth : {1u, 2u, 7u, 64u}) {
    const DiskTiming timing{0.002, 1e6, depth};
    DiskModel disk(timing);
    std::vector<double> ends;
    double now = 0;
    for (size_t i = 0; i < 500; ++i) {
      now += random() % 3 == 0 ? static_cast<double>(random() % 1000) * 1e-5 : 0;
      const uint64_t bytes = random() % 5000;
      const double begin = i < depth ? now : std::max(now, ends[i - depth]);
      double end = begin + timing.latency_s;
      if (i > 0) end = std::max(end, ends.back());
      ends.push_back(end + static_cast<double>(bytes) / timing.bytes_per_s);
      ASSERT_DOUBLE_EQ(disk.Begin(now), begin) << i;
      ASSERT_DOUBLE_EQ(disk.Read(now, bytes), ends.back()) << i;
    }
  }
}

// LRU, and a disk that is idle whenever a layer begins: a layer with misses waits for one latency
// and all of its bytes.
struct PlainRun {
  std::vector<double> stalls;
  uint64_t hits = 0;
};

PlainRun RunPlainly(const DemandTrace& trace, uint64_t budget, const DiskTiming& disk) {
  PlainRun run;
  std::list<ExpertKey> held;
  const auto bytes_held = [&] {
    uint64_t bytes = 0;
    for (const ExpertKey key : held) bytes += trace.size_of(key);
    return bytes;
  };
  for (size_t i = 0; i < trace.demands.size();) {
    const size_t layer = trace.layer_of(trace.demands[i]);
    if (i == 0 || layer < trace.layer_of(trace.demands[i - 1])) run.stalls.push_back(0);
    std::vector<ExpertKey> set;
    for (; i < trace.demands.size() && trace.layer_of(trace.demands[i]) == layer; ++i) {
      set.push_back(trace.demands[i]);
    }
    std::vector<ExpertKey> missing;
    for (const ExpertKey key : set) {
      const auto found = std::find(held.begin(), held.end(), key);
      if (found == held.end()) {
        missing.push_back(key);
      } else {
        held.splice(held.begin(), held, found);
        ++run.hits;
      }
    }
    std::sort(missing.begin(), missing.end());  // in the order of the file
    uint64_t bytes = 0;
    for (const ExpertKey key : missing) {
      bytes += trace.size_of(key);
      // The layer's own stay; what cannot come in is used and dropped.
      while (bytes_held() + trace.size_of(key) > budget) {
        const auto victim = std::find_if(held.rbegin(), held.rend(), [&](ExpertKey one) {
          return std::find(set.begin(), set.end(), one) == set.end();
        });
        if (victim == held.rend()) break;
        held.erase(std::next(victim).base());
      }
      if (bytes_held() + trace.size_of(key) <= budget) held.push_front(key);
    }
    if (missing.empty()) continue;
    const double transfer = static_cast<double>(bytes) / disk.bytes_per_s;
    const double latencies = disk.depth == 1 ? static_cast<double>(missing.size()) : 1;
    run.stalls.back() += latencies * disk.latency_s + transfer;
  }
  return run;
}

TEST(TimedReplay, WaitsForEveryLayersMisses) {
  DemandTrace trace = RandomTrace(60, 5, 32, 4, 2);
  for (size_t key = 0; key < trace.keys(); ++key) trace.sizes.push_back(key % 3 == 0 ? 4000 : 1000);
  for (const size_t depth : {1u, 16u}) {
    for (const uint64_t budget : {3000u, 20'000u, 100'000u, 400'000u}) {
      TimedOptions options;
      options.policy = CachePolicyKind::kLru;
      options.budget = budget;
      options.disk = {0.003, 2e6, depth};
      options.compute_s = 0.01;
      const TimedReplay timed = ReplayTimed(trace, options);
      const PlainRun plain = RunPlainly(trace, budget, options.disk);
      EXPECT_EQ(timed.hits, plain.hits) << budget;
      EXPECT_EQ(timed.demands, trace.demands.size());
      EXPECT_EQ(timed.prefetches + timed.joined, 0u);
      ASSERT_EQ(timed.stalls_s.size(), plain.stalls.size());
      for (size_t i = 0; i < plain.stalls.size(); ++i) {
        EXPECT_NEAR(timed.stalls_s[i], plain.stalls[i], 1e-9) << budget << " " << i;
      }
    }
  }
}

TEST(TimedReplay, CountsNothingOfTheWarmUp) {
  DemandTrace trace = RandomTrace(40, 3, 16, 4, 3);
  TimedOptions options;
  options.budget = trace.keys();
  options.disk = {0.001, 1e6, 4};
  const TimedReplay all = ReplayTimed(trace, options);
  options.warm_up = 30;
  const TimedReplay end = ReplayTimed(trace, options);
  ASSERT_EQ(end.stalls_s.size(), 10u);
  EXPECT_TRUE(std::equal(end.stalls_s.begin(), end.stalls_s.end(), all.stalls_s.begin() + 30));
  EXPECT_EQ(end.demands, 10u * 3 * 4);
  options.warm_up = 100;
  EXPECT_EQ(ReplayTimed(trace, options).MeanStall(), 0);
}

// Layers that never ask for the same expert twice, one each.
DemandTrace NeverAgain(size_t passes) {
  DemandTrace trace;
  trace.layers = 4;
  trace.experts = passes;
  for (size_t pass = 0; pass < passes; ++pass) {
    for (size_t layer = 0; layer < 4; ++layer) {
      trace.demands.push_back(static_cast<ExpertKey>(layer * passes + pass));
    }
  }
  return trace;
}

// What layers do meanwhile is not waited for, and what a read brings beside the expert is.
TEST(TimedReplay, WorksWhileExpertsAreOnTheirWay) {
  DemandTrace trace = NeverAgain(6);
  trace.sizes.assign(trace.keys(), 1000);
  TimedOptions options;
  options.budget = 1 << 20;
  options.disk = {0.5, 4000, 4};
  options.compute_s = 4 * 0.3;
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 4 * 0.75, 1e-9);
  options.overlap_s = 4 * 0.2;
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 4 * 0.55, 1e-9);
  options.plan_reads = [](std::span<const ExpertKey> keys) {
    return std::vector<ExpertRead>{{1000, 2000, {keys.begin(), keys.end()}}};
  };
  const TimedReplay timed = ReplayTimed(trace, options);
  EXPECT_NEAR(timed.MeanStall(), 4 * 0.8, 1e-9);
  EXPECT_EQ(timed.bytes, 24u * 2000);
  options.compute_s = options.overlap_s = 4 * 1.5;
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 0, 1e-9);
}

// One layer of eight: what shares a read shares its latency, and reads wait for room.
TEST(TimedReplay, ReadsTogetherWhatLiesTogetherAndWaitsForRoom) {
  DemandTrace trace;
  trace.layers = 1;
  trace.experts = 8;
  trace.sizes.assign(8, 100);
  trace.demands = {7, 0, 1, 2, 3, 4, 5, 6};
  TimedOptions options;
  options.budget = 1000;
  options.disk = {1, 1000, 4};
  // Two rounds of four reads: the second latency hides no transfer of the first but its own.
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 1.1 + 1 + 0.4, 1e-9);
  // In pairs, a block more for each.
  options.plan_reads = [](std::span<const ExpertKey> keys) {
    std::vector<ExpertRead> reads;
    for (size_t i = 0; i < keys.size(); i += 2) {
      const uint64_t bytes = 100 * std::min<size_t>(2, keys.size() - i);
      reads.push_back({bytes, bytes + 100, {keys[i]}});
      if (i + 1 < keys.size()) reads.back().keys.push_back(keys[i + 1]);
      EXPECT_TRUE(std::is_sorted(reads.back().keys.begin(), reads.back().keys.end()));
    }
    return reads;
  };
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 1 + 4 * 0.3, 1e-9);
  // One pair after the other.
  options.bytes_in_flight = 200;
  EXPECT_NEAR(ReplayTimed(trace, options).MeanStall(), 4 * 1.3, 1e-9);
}

TEST(TimedReplay, BeginsWithWhatIsThere) {
  DemandTrace trace;
  trace.layers = 1;
  trace.experts = 8;
  trace.sizes.assign(8, 10);
  trace.demands = {5, 6, 7};
  TimedOptions options;
  options.policy = CachePolicyKind::kLru;
  options.budget = 29;
  options.disk = {1, 1e9, 8};
  options.preload = {6, 5, 7};  // the third does not fit any more
  const TimedReplay timed = ReplayTimed(trace, options);
  EXPECT_EQ(timed.hits, 2u);
  EXPECT_NEAR(timed.stalls_s.at(0), 1, 1e-6);
}

TEST(TimedReplay, TellsMeansAndQuantiles) {
  TimedReplay replay;
  EXPECT_EQ(replay.StallQuantile(0.95), 0);
  for (int i = 20; i > 0; --i) replay.stalls_s.push_back(i);
  EXPECT_DOUBLE_EQ(replay.MeanStall(), 10.5);
  EXPECT_EQ(replay.StallQuantile(0.95), 19);
  EXPECT_EQ(replay.StallQuantile(1), 20);
  EXPECT_EQ(replay.StallQuantile(0), 1);
}

// Knows what comes: the demand after each.
class Oracle final : public DemandPredictor {
 public:
  explicit Oracle(const DemandTrace& trace) : trace_(trace) {}
  void Observe(size_t, size_t, std::vector<ExpertKey>& predicted) override {
    if (++at_ < trace_.demands.size()) predicted.push_back(trace_.demands[at_]);
  }

 private:
  const DemandTrace& trace_;
  size_t at_ = 0;
};

TimedReplay WithOracle(const DemandTrace& trace, double compute_of_layer) {
  Oracle oracle(trace);
  TimedOptions options;
  options.budget = trace.keys();
  options.disk = {1.0, 1e12, 4};
  options.compute_s = 4 * compute_of_layer;
  options.predictor = &oracle;
  return ReplayTimed(trace, options);
}

TEST(TimedReplay, ReadsAheadWhileLayersWork) {
  const DemandTrace trace = NeverAgain(10);
  // The first read of all is the only one that is waited for.
  const TimedReplay slow = WithOracle(trace, 1.5);
  EXPECT_NEAR(slow.stalls_s[0], 1, 1e-6);
  for (size_t pass = 1; pass < 10; ++pass) EXPECT_NEAR(slow.stalls_s[pass], 0, 1e-6);
  EXPECT_EQ(slow.prefetches, 39u);
  EXPECT_EQ(slow.hits, 39u);
  // A read ahead begins with the layer before: what that one waits and works is saved. 1, 0, 3/4,
  // 0, 3/4, ...
  const TimedReplay fast = WithOracle(trace, 0.25);
  EXPECT_NEAR(fast.stalls_s[0], 1.75, 1e-6);
  for (size_t pass = 1; pass < 10; ++pass) EXPECT_NEAR(fast.stalls_s[pass], 1.5, 1e-6) << pass;
  EXPECT_GT(fast.joined, 0u);
  EXPECT_EQ(fast.hits + fast.joined, 39u);
}

// Guesses that no layer asks for cost bandwidth, not order: a demand does not wait behind those
// that have not begun.
class Nonsense final : public DemandPredictor {
 public:
  void Observe(size_t layer, size_t, std::vector<ExpertKey>& predicted) override {
    for (ExpertKey e = 0; e < 50; ++e) {
      predicted.push_back(static_cast<ExpertKey>((layer + 1) % 4 * 400 + 300 + e));
    }
  }
};

TEST(TimedReplay, GivesGuessesUpWhenTheirLayerComes) {
  DemandTrace trace = NeverAgain(10);
  trace.experts = 400;
  for (ExpertKey& key : trace.demands) key = key / 10 * 400 + key % 10;
  Nonsense nonsense;
  TimedOptions options;
  options.budget = trace.keys();
  options.disk = {0.1, 1e12, 1};
  options.compute_s = 1;
  options.predictor = &nonsense;
  const TimedReplay timed = ReplayTimed(trace, options);
  // One read under way at most, of a tenth of a second.
  for (const double stall : timed.stalls_s) EXPECT_LE(stall, 4 * 0.2 + 1e-6);
  EXPECT_LT(timed.prefetches, 10u * 4 * 4);
  EXPECT_EQ(timed.hits, 0u);
}

}  // namespace
}  // namespace mk
