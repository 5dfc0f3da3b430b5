// What the daemon's metrics say of the last while: the difference between two readings.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"

namespace mk::client {

// One reading, made quick to look things up in: values of counters and gauges summed over their
// labels, and histograms likewise.
class MetricReading {
 public:
  struct Bucket {
    std::optional<double> up_to;
    uint64_t count = 0;
  };
  using Histogram = std::map<double, Bucket>;  // by lower bound

  MetricReading() = default;
  explicit MetricReading(const std::vector<protocol::MetricFamily>& families);

  // 0 for a name that the daemon does not know.
  double Value(std::string_view name) const;
  const Histogram& Buckets(std::string_view name) const;

 private:
  std::map<std::string, double, std::less<>> values_;
  std::map<std::string, Histogram, std::less<>> histograms_;
};

// Of the values that were added between two readings.
struct LatencySummary {
  uint64_t count = 0;
  double p50 = 0;  // in the metric's unit
  double p90 = 0;
  double p99 = 0;
};
LatencySummary Summarise(const MetricReading& before, const MetricReading& after,
                         std::string_view name);

}  // namespace mk::client
