// What the daemon measures: the answer to the op `metrics`. Included by messages.h.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mk::protocol {

// Values in (above, up_to]; empty buckets are left out.
struct MetricBucket {
  double above = 0;
  std::optional<double> up_to;  // none: without a bound
  uint64_t count = 0;           // in this bucket alone
  bool operator==(const MetricBucket&) const = default;
};

struct MetricSample {
  std::map<std::string, std::string> labels;
  double value = 0;  // of a counter or gauge; the sum of a histogram's values
  uint64_t count = 0;
  std::vector<MetricBucket> buckets;  // of a histogram, ascending
  bool operator==(const MetricSample&) const = default;
};

struct MetricFamily {
  std::string name;
  std::string type;  // "counter", "gauge", "histogram"
  std::string unit;  // "seconds", "bytes", ""
  std::string help;
  std::vector<MetricSample> samples;
  bool operator==(const MetricFamily&) const = default;
};

struct MetricsDone {
  std::string text;  // with form "text": the Prometheus text format, version 0.0.4
  std::vector<MetricFamily> families;  // with form "families"
  bool operator==(const MetricsDone&) const = default;
};

}  // namespace mk::protocol
