// Histogram: how often which size was seen, in buckets whose width grows with the size.
//
// Values are whole numbers of some tick (a microsecond, a sequence). Everything up to 2^lowest is
// one bucket; from there to 2^highest every doubling is cut into eight buckets of equal width, so a
// quantile is off by an eighth of its value at most; what is larger is one bucket without a bound.
// A bucket holds values above its lower bound, up to and including its upper one.
//
// Observe() may be called from any thread: two relaxed atomic additions, no lock, no allocation.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mk::daemon {

struct HistogramRange {
  int lowest = 0;  // powers of two
  int highest = 1;
};

inline constexpr size_t kBucketsPerDoubling = 8;

// What a histogram held at one moment.
class HistogramSnapshot {
 public:
  HistogramSnapshot(HistogramRange range, std::vector<uint64_t> counts, uint64_t sum)
      : range_(range), counts_(std::move(counts)), sum_(sum) {}

  HistogramRange range() const { return range_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // of every bucket
  uint64_t sum() const { return sum_; }                            // of the values
  uint64_t count() const;
  // Bounds of bucket i in ticks; the upper one of the last bucket is infinite.
  double lower(size_t i) const;
  double upper(size_t i) const;
  // The value that a share of `q` (0..1) of all values does not exceed, as if the values of a
  // bucket lay evenly in it. 0 when there are none; 2^highest when it is in the last bucket.
  double Quantile(double q) const;
  // Adds what another histogram of the same range held.
  void Add(const HistogramSnapshot& other);

 private:
  HistogramRange range_;
  std::vector<uint64_t> counts_;
  uint64_t sum_;
};

class Histogram {
 public:
  static constexpr int kMaxDoublings = 32;

  // `highest` - `lowest` is kMaxDoublings at most, `highest` 48.
  explicit Histogram(HistogramRange range) : range_(range) {}

  void Observe(uint64_t value) {
    counts_[BucketOf(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }
  HistogramSnapshot Snapshot() const;

 private:
  size_t buckets() const {
    return static_cast<size_t>(range_.highest - range_.lowest) * kBucketsPerDoubling + 2;
  }
  size_t BucketOf(uint64_t value) const {
    if (value <= uint64_t{1} << range_.lowest) return 0;
    if (value > uint64_t{1} << range_.highest) return buckets() - 1;
    // 2^e < value <= 2^(e+1), and j buckets of that doubling lie wholly below the value.
    const int e = std::bit_width(value - 1) - 1;
    const uint64_t above = value - (uint64_t{1} << e);
    const uint64_t j = (above * kBucketsPerDoubling - 1) >> e;
    return 1 + static_cast<size_t>(e - range_.lowest) * kBucketsPerDoubling +
           static_cast<size_t>(j);
  }

  const HistogramRange range_;
  std::atomic<uint64_t> sum_{0};
  std::array<std::atomic<uint64_t>, kMaxDoublings * kBucketsPerDoubling + 2> counts_{};
};

}  // namespace mk::daemon
