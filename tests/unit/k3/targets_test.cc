// Whole models on every instruction set of this machine: the same bits in every precision, when a
// prompt is read and when single tokens follow.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/kernels/kernel_test.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

class Targets : public testing::TestWithParam<const char*> {};

// Logits of 40 prompt tokens and of eight single ones.
std::vector<float> RunIn(const std::string& path, Precision precision) {
  // Loaded here, because weights are packed for the instruction set that runs.
  const auto model = Load(path, precision);
  const auto executor = MakeExecutor(2);
  SequenceOptions options;
  options.precision = precision;
  const auto sequence = MakeSequence(*model, options);
  const std::vector<int32_t> tokens = RandomTokens(48, model->info().vocab, 3);
  const std::span<const int32_t> all = tokens;
  std::vector<float> logits = Feed(*model, *executor, *sequence, all.first(40));
  const std::vector<float> rest = FeedInSegments(*model, *executor, *sequence, all.subspan(40), 1);
  logits.insert(logits.end(), rest.begin(), rest.end());
  return logits;
}

TEST_P(Targets, EveryInstructionSetGivesTheSameBits) {
  const std::string path = std::string(MK_SOURCE_DIR) + "/" + GetParam();
  for (size_t p = 0; p < kPrecisions; ++p) {
    const auto precision = static_cast<Precision>(p);
    SCOPED_TRACE(PrecisionName(precision));
    const std::vector<float> expected = RunIn(path, precision);
    ForEachTarget([&] { ExpectSameBits(RunIn(path, precision), expected); });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Targets,
                         testing::Values("models/story-k3.bin",
                                         "tests/data/golden/k3/k3b/model.bin"));

}  // namespace
}  // namespace mk::test
