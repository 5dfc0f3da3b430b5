// The metrics of one moment, and the forms in which they leave the daemon.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/metrics.h"
#include "protocol/messages.h"

namespace mk::daemon {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricSheet {
 public:
  struct Sample {
    MetricLabels labels;
    double value = 0;
    std::optional<HistogramSnapshot> histogram;
  };
  enum class Type { kCounter, kGauge, kHistogram };
  struct Family {
    const MetricInfo* info;
    Type type;
    double ticks_per_unit;  // of a histogram
    std::vector<Sample> samples;
  };

  // All counters, distributions and answered requests. Of the many pairs of op and outcome, those
  // that have not happened are left out, but for `done`.
  void Add(const Metrics& metrics);
  // Samples of one gauge follow each other.
  void Add(Gauge gauge, double value, MetricLabels labels = {});

  const std::vector<Family>& families() const { return families_; }

  // The Prometheus text format. Names get the prefix `microkimi_` unless they begin with
  // `process_`, those of counters the end `_total`. Histograms show the bounds of whole doublings.
  std::string ToText() const;
  std::vector<protocol::MetricFamily> ToWire() const;

 private:
  Family& FamilyOf(const MetricInfo& info, Type type, double ticks_per_unit = 1);

  std::vector<Family> families_;
};

}  // namespace mk::daemon
