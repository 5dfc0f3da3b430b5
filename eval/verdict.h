// Two models measured on the same units: how far they are apart, and what may be said of it.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "eval/bootstrap.h"

namespace mk::eval {

// Differences within these are of no account.
inline constexpr double kBitsMargin = 0.01;      // bits per byte
inline constexpr double kAccuracyMargin = 0.01;  // a point in a hundred

struct PairedUnits {
  std::string_view measure;         // names the seed
  std::span<const double> a;        // numerators of the first model
  std::span<const double> b;        // of the second, unit by unit
  std::span<const double> weights;  // denominators, of both
  bool less_is_better = false;
  double margin = 0;
};

struct PairedResult {
  double a = 0;  // ratios of sums
  double b = 0;
  BootstrapInterval difference;  // b - a
  uint64_t better = 0;           // units in which b is better
  uint64_t worse = 0;
  uint64_t ties = 0;
  double sign_p = 1;
  double detectable = 0;  // the smallest difference that so many units would show
  // Of the second model: "better", "worse", "equivalent" (the whole interval is within the margin),
  // "no difference shown", "too few to tell".
  std::string_view verdict;
};

PairedResult Compare(const PairedUnits& units, const BootstrapOptions& options);

}  // namespace mk::eval
