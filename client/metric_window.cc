#include "client/metric_window.h"

#include <algorithm>

namespace mk::client {
namespace {

// Buckets of values that came after `before`; none are negative, as a histogram only grows.
MetricReading::Histogram Difference(const MetricReading::Histogram& before,
                                    MetricReading::Histogram after) {
  for (auto& [above, bucket] : after) {
    const auto found = before.find(above);
    if (found == before.end()) continue;
    bucket.count -= std::min(bucket.count, found->second.count);
  }
  return after;
}

// As if the values of a bucket lay evenly in it; the lower bound for a bucket without an upper one.
double Quantile(const MetricReading::Histogram& histogram, uint64_t total, double q) {
  const double rank = q * static_cast<double>(total);
  double below = 0;
  for (const auto& [above, bucket] : histogram) {
    const auto here = static_cast<double>(bucket.count);
    if (here > 0 && below + here >= rank) {
      if (!bucket.up_to) return above;
      return above + (*bucket.up_to - above) * std::max(rank - below, 0.0) / here;
    }
    below += here;
  }
  return 0;
}

}  // namespace

MetricReading::MetricReading(const std::vector<protocol::MetricFamily>& families) {
  for (const protocol::MetricFamily& family : families) {
    for (const protocol::MetricSample& sample : family.samples) {
      values_[family.name] += sample.value;
      if (family.type != "histogram") continue;
      Histogram& histogram = histograms_[family.name];
      for (const protocol::MetricBucket& bucket : sample.buckets) {
        Bucket& sum = histogram[bucket.above];
        sum.up_to = bucket.up_to;
        sum.count += bucket.count;
      }
    }
  }
}

double MetricReading::Value(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? 0 : found->second;
}

const MetricReading::Histogram& MetricReading::Buckets(std::string_view name) const {
  static const Histogram kEmpty;
  const auto found = histograms_.find(name);
  return found == histograms_.end() ? kEmpty : found->second;
}

LatencySummary Summarise(const MetricReading& before, const MetricReading& after,
                         std::string_view name) {
  const auto added = Difference(before.Buckets(name), after.Buckets(name));
  LatencySummary summary;
  for (const auto& [above, bucket] : added) summary.count += bucket.count;
  if (summary.count == 0) return summary;
  summary.p50 = Quantile(added, summary.count, 0.50);
  summary.p90 = Quantile(added, summary.count, 0.90);
  summary.p99 = Quantile(added, summary.count, 0.99);
  return summary;
}

}  // namespace mk::client
