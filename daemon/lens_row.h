// One row of a logit lens, reduced to what is shown of it.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "protocol/messages.h"

namespace mk::daemon {

// Ids of the `top` largest logits, the largest first, equal ones by id; their probabilities, the
// entropy, and rank and probability of `next`. Sums are f64, in order of ids.
protocol::LensLayer ReduceLensRow(std::span<const float> logits, size_t top,
                                  std::optional<int32_t> next);

// Mean and standard deviation of a population, f64.
std::pair<double, double> MeanAndDeviation(std::span<const float> values);

// Root of the mean of squares, f64.
double RootMeanSquare(std::span<const float> values);

}  // namespace mk::daemon
