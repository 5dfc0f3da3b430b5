#include "engine/shadow/codebook_trainer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/format/vq1.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/kernels/vq1_search.h"
#include "engine/shadow/vector_sample.h"

namespace mk {
namespace {

constexpr size_t kPiece = 4096;  // samples of a task

class Training {
 public:
  Training(std::span<const float> samples, std::span<float> codebook, ThreadPool& pool)
      : samples_(samples),
        count_(samples.size() / kVq1Group),
        codebook_(codebook),
        pool_(pool),
        nearest_(count_),
        distances_(count_) {}

  void Start(uint64_t seed) {
    SplitMix64 random(seed);
    std::set<uint64_t> chosen;
    for (size_t entry = 0; entry < std::min(kVq1Entries, count_);) {
      const uint64_t sample = random.Below(count_);
      if (chosen.insert(sample).second) std::ranges::copy(Sample(sample), Entry(entry++).begin());
    }
  }

  // True if no mean has changed.
  Result<bool> Round() {
    CompleteVq1Codebook(codebook_.data());
    if (Status assigned = Assign(); !assigned) return Fail(assigned.error());
    return !MoveEntries();
  }

 private:
  std::span<const float> Sample(size_t i) const {
    return samples_.subspan(i * kVq1Group, kVq1Group);
  }
  std::span<float> Entry(size_t k) const { return codebook_.subspan(k * kVq1Group, kVq1Group); }

  Status Assign() {
    return pool_.ParallelFor((count_ + kPiece - 1) / kPiece, [&](size_t piece, size_t) {
      const size_t first = piece * kPiece;
      FindNearestVq1(codebook_.data(), &samples_[first * kVq1Group],
                     std::min(kPiece, count_ - first), &nearest_[first], &distances_[first]);
    });
  }

  bool MoveEntries() {
    std::vector<double> sums(kVq1CodebookSize);
    std::vector<size_t> counts(kVq1Entries);
    for (size_t i = 0; i < count_; ++i) {
      double* sum = &sums[size_t{nearest_[i]} * kVq1Group];
      for (size_t j = 0; j < kVq1Group; ++j) sum[j] += static_cast<double>(Sample(i)[j]);
      ++counts[nearest_[i]];
    }
    bool moved = false;
    for (size_t k = 0; k < kVq1Entries; ++k) {
      if (counts[k] == 0) {
        Reseed(k);
        continue;
      }
      for (size_t j = 0; j < kVq1Group; ++j) {
        const double mean = sums[k * kVq1Group + j] / static_cast<double>(counts[k]);
        float& value = Entry(k)[j];
        moved |= value != static_cast<float>(mean);
        value = static_cast<float>(mean);
      }
    }
    return moved;
  }

  void Reseed(size_t entry) {
    size_t farthest = 0;
    for (size_t i = 0; i < count_; ++i) {
      if (distances_[i] >= distances_[farthest]) farthest = i;
    }
    std::ranges::copy(Sample(farthest), Entry(entry).begin());
    distances_[farthest] = 0;
  }

  const std::span<const float> samples_;
  const size_t count_;
  const std::span<float> codebook_;  // with the room for completing it
  ThreadPool& pool_;
  std::vector<uint8_t> nearest_;
  std::vector<float> distances_;
};

}  // namespace

std::span<const float> TrainedCodebook::entries() const {
  return codebook.floats().first(kVq1CodebookSize);
}

Result<TrainedCodebook> TrainCodebook(std::span<const float> samples, uint64_t seed,
                                      ThreadPool& pool,
                                      const std::function<bool(size_t round)>& progress) {
  if (samples.size() < kVq1Group) {
    return Fail(ErrorCode::kInvalidArgument, "a codebook cannot be trained on nothing");
  }
  Result<PageBuffer> memory = PageBuffer::Allocate(kVq1CodebookFloats * sizeof(float));
  if (!memory) return Fail(memory.error());
  TrainedCodebook trained;
  Training training(samples, memory->floats(), pool);
  training.Start(seed);
  while (trained.rounds < kTrainingRounds) {
    if (progress && !progress(trained.rounds)) {
      return Fail(ErrorCode::kCancelled, "the training was cancelled");
    }
    const Result<bool> settled = training.Round();
    if (!settled) return Fail(settled.error());
    ++trained.rounds;
    if (*settled && trained.rounds > 1) break;
  }
  CompleteVq1Codebook(memory->floats().data());
  trained.codebook = std::move(*memory);
  return trained;
}

}  // namespace mk
