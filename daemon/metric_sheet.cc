#include "daemon/metric_sheet.h"

#include <array>
#include <charconv>
#include <cmath>

#include "protocol/utf8.h"

namespace mk::daemon {
namespace {

using Type = MetricSheet::Type;

constexpr std::string_view TypeName(Type type) {
  switch (type) {
    case Type::kCounter:
      return "counter";
    case Type::kGauge:
      return "gauge";
    case Type::kHistogram:
      break;
  }
  return "histogram";
}

// The shortest text that reads back as the same number.
std::string Number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

// A label's value stands in quotes; a help text does not.
std::string Escaped(std::string_view text, bool quoted) {
  std::string escaped;
  for (const char c : protocol::ReplaceInvalidUtf8(text)) {
    if (c == '\\') {
      escaped += "\\\\";
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '"' && quoted) {
      escaped += "\\\"";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// {op="run",outcome="done"}; `le` is the bound of a histogram's bucket.
std::string LabelText(const MetricLabels& labels, const std::string& le = {}) {
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view value) {
    text += text.empty() ? "{" : ",";
    text += name;
    text += "=\"" + Escaped(value, true) + "\"";
  };
  for (const auto& [name, value] : labels) add(name, value);
  if (!le.empty()) add("le", le);
  return text.empty() ? text : text + "}";
}

std::string FullName(const MetricSheet::Family& family) {
  std::string name(family.info->name);
  if (!name.starts_with("process_")) name.insert(0, "microkimi_");
  return family.type == Type::kCounter ? name + "_total" : name;
}

void AppendHistogram(const std::string& name, const MetricSheet::Sample& sample,
                     double ticks_per_unit, std::string& text) {
  const HistogramSnapshot& histogram = *sample.histogram;
  uint64_t below = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    below += histogram.counts()[i];
    const bool last = i + 1 == histogram.counts().size();
    if (i % kBucketsPerDoubling != 0 && !last) continue;
    text += name + "_bucket" +
            LabelText(sample.labels, Number(histogram.upper(i) / ticks_per_unit)) + " " +
            std::to_string(below) + "\n";
  }
  const std::string labels = LabelText(sample.labels);
  text += name + "_sum" + labels + " " +
          Number(static_cast<double>(histogram.sum()) / ticks_per_unit) + "\n";
  text += name + "_count" + labels + " " + std::to_string(below) + "\n";
}

protocol::MetricSample ToWire(const MetricSheet::Sample& sample, double ticks_per_unit) {
  protocol::MetricSample wire;
  wire.labels.insert(sample.labels.begin(), sample.labels.end());
  wire.value = sample.value;
  if (!sample.histogram) return wire;
  const HistogramSnapshot& histogram = *sample.histogram;
  wire.value = static_cast<double>(histogram.sum()) / ticks_per_unit;
  wire.count = histogram.count();
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    if (histogram.counts()[i] == 0) continue;
    protocol::MetricBucket bucket{histogram.lower(i) / ticks_per_unit, {}, histogram.counts()[i]};
    if (i + 1 < histogram.counts().size()) bucket.up_to = histogram.upper(i) / ticks_per_unit;
    wire.buckets.push_back(bucket);
  }
  return wire;
}

MetricLabels OwnLabel(const MetricInfo& info) {
  if (info.label.empty()) return {};
  return {{std::string(info.label), std::string(info.value)}};
}

}  // namespace

MetricSheet::Family& MetricSheet::FamilyOf(const MetricInfo& info, Type type,
                                           double ticks_per_unit) {
  if (families_.empty() || families_.back().info->name != info.name) {
    families_.push_back({&info, type, ticks_per_unit, {}});
  }
  return families_.back();
}

void MetricSheet::Add(const Metrics& metrics) {
  Family& requests = FamilyOf(DescribeRequests(), Type::kCounter);
  for (size_t i = 0; i < std::variant_size_v<protocol::Args>; ++i) {
    const auto op = static_cast<protocol::Op>(i);
    for (Outcome outcome = 0; outcome < kOutcomes; ++outcome) {
      const uint64_t count = metrics.Requests(op, outcome);
      if (count == 0 && outcome != kOutcomeDone) continue;
      requests.samples.push_back({{{"op", std::string(protocol::InfoOf(op).name)},
                                   {"outcome", std::string(OutcomeName(outcome))}},
                                  static_cast<double>(count),
                                  {}});
    }
  }
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    const auto counter = static_cast<Counter>(i);
    const MetricInfo& info = Describe(counter);
    FamilyOf(info, Type::kCounter)
        .samples.push_back({OwnLabel(info), static_cast<double>(metrics.Get(counter)), {}});
  }
  for (size_t i = 0; i < static_cast<size_t>(Distribution::kCount); ++i) {
    const auto distribution = static_cast<Distribution>(i);
    const DistributionInfo& info = Describe(distribution);
    FamilyOf(info, Type::kHistogram, info.ticks_per_unit)
        .samples.push_back({OwnLabel(info), 0, metrics.Get(distribution)});
  }
}

void MetricSheet::Add(Gauge gauge, double value, MetricLabels labels) {
  const GaugeInfo& info = Describe(gauge);
  FamilyOf(info, info.grows ? Type::kCounter : Type::kGauge)
      .samples.push_back({std::move(labels), value, {}});
}

std::string MetricSheet::ToText() const {
  std::string text;
  for (const Family& family : families_) {
    const std::string name = FullName(family);
    text += "# HELP " + name + " " + Escaped(family.info->help, false) + "\n";
    text += "# TYPE " + name + " ";
    text += TypeName(family.type);
    text += "\n";
    for (const Sample& sample : family.samples) {
      if (sample.histogram) {
        AppendHistogram(name, sample, family.ticks_per_unit, text);
      } else {
        text += name + LabelText(sample.labels) + " " + Number(sample.value) + "\n";
      }
    }
  }
  return text;
}

std::vector<protocol::MetricFamily> MetricSheet::ToWire() const {
  std::vector<protocol::MetricFamily> wire;
  for (const Family& family : families_) {
    protocol::MetricFamily one{std::string(family.info->name),
                               std::string(TypeName(family.type)),
                               std::string(family.info->unit),
                               std::string(family.info->help),
                               {}};
    for (const Sample& sample : family.samples) {
      one.samples.push_back(daemon::ToWire(sample, family.ticks_per_unit));
    }
    wire.push_back(std::move(one));
  }
  return wire;
}

}  // namespace mk::daemon
