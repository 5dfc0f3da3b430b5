// Bootstrap intervals of a ratio of sums, sum n_i / sum w_i, over units that are drawn with
// replacement: documents with their bytes, probes with weight 1. Of paired measurements n_i is the
// difference of the two.
//
// The draws come from splitmix64 alone, so that a seed gives the same interval on every machine.
// Thread-safe.

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "eval/chance.h"

namespace mk::eval {

// Fewer units do not carry an interval.
inline constexpr size_t kFewestUnits = 10;

struct BootstrapOptions {
  uint64_t seed = 1;
  uint32_t resamples = 10000;
  // Efron's bias-corrected and accelerated interval; else the plain percentiles of the resamples.
  bool bca = true;
};

struct BootstrapInterval {
  double estimate = 0;  // of the units themselves
  Bounds bounds;        // at kConfidence; meaningless with kNone
  enum class Method { kNone, kPercentile, kBca } method = Method::kNone;
};

// "none", "percentile", "bca".
std::string_view NameOf(BootstrapInterval::Method method);

// `values` and `weights` are of one length; weights are positive. kNone: fewer than kFewestUnits,
// or a value that is not finite. kPercentile although BCa was asked for: all resamples lie on one
// side of the estimate.
BootstrapInterval Bootstrap(std::span<const double> values, std::span<const double> weights,
                            const BootstrapOptions& options);

// The seed of one measure among several: FNV-1a-64 of its name, xor `seed`.
uint64_t SeedFor(uint64_t seed, std::string_view measure);

}  // namespace mk::eval
