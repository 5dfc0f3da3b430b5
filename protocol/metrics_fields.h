// The fields of the metrics' answer. Included by reply_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/metrics_messages.h"

namespace mk::protocol {

template <>
struct Schema<MetricBucket> {
  static constexpr auto fields = std::make_tuple(Required("above", &MetricBucket::above),
                                                 Optional("up_to", &MetricBucket::up_to),
                                                 Required("count", &MetricBucket::count));
};

template <>
struct Schema<MetricSample> {
  static constexpr auto fields = std::make_tuple(
      Required("labels", &MetricSample::labels), Required("value", &MetricSample::value),
      Optional("count", &MetricSample::count), Optional("buckets", &MetricSample::buckets));
};

template <>
struct Schema<MetricFamily> {
  static constexpr auto fields =
      std::make_tuple(Required("name", &MetricFamily::name), Required("type", &MetricFamily::type),
                      Required("unit", &MetricFamily::unit), Required("help", &MetricFamily::help),
                      Required("samples", &MetricFamily::samples));
};

template <>
struct Schema<MetricsDone> {
  static constexpr auto fields = std::make_tuple(Required("text", &MetricsDone::text),
                                                 Required("families", &MetricsDone::families));
};

}  // namespace mk::protocol
