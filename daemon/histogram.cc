#include "daemon/histogram.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace mk::daemon {

HistogramSnapshot Histogram::Snapshot() const {
  std::vector<uint64_t> counts(buckets());
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return {range_, std::move(counts), sum_.load(std::memory_order_relaxed)};
}

uint64_t HistogramSnapshot::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
}

double HistogramSnapshot::upper(size_t i) const {
  if (i + 1 >= counts_.size()) return std::numeric_limits<double>::infinity();
  const auto doubling = static_cast<int>(i / kBucketsPerDoubling);
  const double part = static_cast<double>(i % kBucketsPerDoubling) / kBucketsPerDoubling;
  return std::ldexp(1 + part, range_.lowest + doubling);
}

double HistogramSnapshot::lower(size_t i) const {
  return i == 0 ? 0 : upper(i - 1);
}

double HistogramSnapshot::Quantile(double q) const {
  const auto total = static_cast<double>(count());
  if (total == 0) return 0;
  const double rank = std::clamp(q, 0.0, 1.0) * total;
  double below = 0;
  for (size_t i = 0; i + 1 < counts_.size(); ++i) {
    const auto here = static_cast<double>(counts_[i]);
    if (here > 0 && below + here >= rank) {
      return lower(i) + (upper(i) - lower(i)) * std::max(rank - below, 0.0) / here;
    }
    below += here;
  }
  return lower(counts_.size() - 1);
}

void HistogramSnapshot::Add(const HistogramSnapshot& other) {
  for (size_t i = 0; i < counts_.size() && i < other.counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  sum_ += other.sum_;
}

}  // namespace mk::daemon
