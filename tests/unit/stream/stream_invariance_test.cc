// Streaming changes when experts arrive, never what is computed: logits equal those of the model
// with all experts in memory, bit for bit, whatever the budget, the policy, the way of reading, the
// predictions, the precision, the threads and the cut of the prompt.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "engine/format/mkim_file.h"
#include "tests/unit/model/random_model.h"

namespace mk::test {
namespace {

constexpr size_t kPrompt = 70;
constexpr size_t kDecoded = 10;

struct Case {
  const char* name;
  StreamOptions options;
  double budget;  // share of what all experts take, above the smallest
};

StreamOptions With(CachePolicyKind policy, StreamIo io, bool fuse,
                   std::array<bool, kPrefetchSources> prefetch) {
  StreamOptions options;
  options.policy = policy;
  options.io = io;
  options.fuse = fuse;
  options.prefetch = prefetch;
  return options;
}

constexpr std::array<bool, kPrefetchSources> kNone = {};
constexpr std::array<bool, kPrefetchSources> kAll = {true, true, true, true, true};

std::vector<Case> Cases() {
  StreamOptions slow = With(CachePolicyKind::kAged, StreamIo::kThreads, true, kAll);
  slow.slow_disk = {.latency_us = 100, .bytes_per_second = 50'000'000, .depth = 4};
  StreamOptions shallow = With(CachePolicyKind::kLru, StreamIo::kAuto, false, kAll);
  shallow.depth = 1;
  return {
      {"lru", With(CachePolicyKind::kLru, StreamIo::kAuto, true, kAll), 0},
      {"lfu", With(CachePolicyKind::kLfu, StreamIo::kBuffered, true, kNone), 0.1},
      {"arc", With(CachePolicyKind::kArc, StreamIo::kThreads, false, kAll), 0.1},
      {"aged", With(CachePolicyKind::kAged, StreamIo::kAuto, true, kAll), 0.25},
      {"large", With(CachePolicyKind::kAged, StreamIo::kAuto, true, kAll), 2},
      {"shallow", shallow, 0.1},
      {"slow", slow, 0.1},
  };
}

// The smallest budget is said in the error of a smaller one, in KiB.
uint64_t SmallestBudget(const std::string& path) {
  LoadOptions options;
  options.stream.emplace();
  options.stream->budget = 1;
  const auto refused = LoadModel(path, options);
  EXPECT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  const std::string& hint = refused.error().hint;
  const size_t digits = hint.find_first_of("0123456789");
  EXPECT_NE(digits, std::string::npos) << hint;
  return std::stoull(hint.substr(digits)) * 1024;
}

std::shared_ptr<const Model> LoadStreamed(const std::string& path, Precision precision,
                                          const StreamOptions& stream) {
  LoadOptions options;
  options.precision = precision;
  options.stream = stream;
  auto model = LoadModel(path, options);
  EXPECT_TRUE(model) << model.error().ToString();
  return model ? *model : nullptr;
}

// Logits of a prompt in two cuts and of decoded tokens, two sequences side by side.
std::vector<float> Logits(const Model& model, Precision precision, size_t threads) {
  const std::unique_ptr<Executor> executor = MakeExecutor(threads);
  SequenceOptions options;
  options.precision = precision;
  std::vector<float> all;
  for (const uint32_t seed : {1u, 2u}) {
    const std::unique_ptr<Sequence> sequence = MakeSequence(model, options);
    const std::vector<int32_t> tokens = RandomTokens(kPrompt, model.info().vocab, seed);
    std::vector<float> rows = FeedInSegments(model, *executor, *sequence, tokens, 64);
    for (size_t i = 0; i < kDecoded; ++i) {
      const int32_t next = ArgMax(std::span(rows).last(model.info().vocab));
      all.insert(all.end(), rows.begin(), rows.end());
      rows = Feed(model, *executor, *sequence, {&next, 1});
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

class StreamInvariance : public testing::TestWithParam<std::tuple<Kind, Precision>> {};

TEST_P(StreamInvariance, LogitsAreThoseOfTheResidentModel) {
  const auto [kind, precision] = GetParam();
  const RandomModel resident(kind, precision);
  const std::vector<float> expected = Logits(*resident, precision, 2);
  const uint64_t smallest = SmallestBudget(resident.path());
  size_t threads = 1;
  for (const Case& test : Cases()) {
    StreamOptions options = test.options;
    const uint64_t all = LoadStreamed(resident.path(), precision,
                                      [&] {
                                        StreamOptions probe;
                                        probe.budget = smallest;
                                        return probe;
                                      }())
                             ->stream_stats()
                             ->all_bytes;
    options.budget = smallest + static_cast<uint64_t>(test.budget * static_cast<double>(all));
    const auto model = LoadStreamed(resident.path(), precision, options);
    ASSERT_NE(model, nullptr) << test.name;
    EXPECT_TRUE(SameBits(Logits(*model, precision, threads), expected)) << test.name;
    threads = 3 - threads;

    const StreamStats stats = *model->stream_stats();
    EXPECT_EQ(stats.demands, stats.hits + stats.misses + stats.joined) << test.name;
    EXPECT_GT(stats.demands, 0u);
    EXPECT_LE(stats.cached_bytes, options.budget) << test.name;
    EXPECT_EQ(stats.failed_reads, 0u);
    if (test.budget < 1) {
      EXPECT_GT(stats.evictions, 0u) << test.name;
    } else {
      EXPECT_EQ(stats.evictions, 0u) << test.name;
      EXPECT_LE(stats.cached_bytes, stats.all_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StreamInvariance,
                         testing::Combine(testing::Values(Kind::kK3, Kind::kDsv4),
                                          testing::Values(Precision::kExact, Precision::kBf16,
                                                          Precision::kQ8)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param) == Kind::kK3 ? "K3" : "Dsv4") +
                                  std::string(PrecisionName(std::get<1>(one.param)));
                         });

// An expert that a prompt needs more than once is read once per segment.
TEST(Stream, APromptReadsEveryExpertOncePerSegment) {
  for (const Kind kind : {Kind::kK3, Kind::kDsv4}) {
    const RandomModel resident(kind);
    StreamOptions options;
    options.budget = SmallestBudget(resident.path());
    options.prefetch = kNone;
    const auto model = LoadStreamed(resident.path(), Precision::kExact, options);
    const std::unique_ptr<Executor> executor = MakeExecutor(2);
    const std::unique_ptr<Sequence> sequence = MakeSequence(*model);
    Feed(*model, *executor, *sequence, RandomTokens(64, model->info().vocab, 3));
    const StreamStats stats = *model->stream_stats();
    EXPECT_EQ(stats.demands, executor->expert_use().reads);
    EXPECT_LE(stats.misses, executor->expert_use().reads);
  }
}

}  // namespace
}  // namespace mk::test
