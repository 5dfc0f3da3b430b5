#include "daemon/lens_row.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mk::daemon {
namespace {

std::vector<int32_t> LargestIds(std::span<const float> logits, size_t top) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(top, ids.size()));
  std::partial_sort(ids.begin(), end, ids.end(), before);
  ids.erase(end, ids.end());
  return ids;
}

}  // namespace

protocol::LensLayer ReduceLensRow(std::span<const float> logits, size_t top,
                                  std::optional<int32_t> next) {
  protocol::LensLayer row;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  double weighted = 0;
  for (const float logit : logits) {
    const double below = static_cast<double>(logit) - largest;
    const double share = std::exp(below);
    sum += share;
    if (share > 0) weighted += below * share;
  }
  const auto probability = [&](int32_t id) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) - largest) / sum;
  };
  row.entropy = std::max(0.0, std::log(sum) - weighted / sum);
  row.ids = LargestIds(logits, top);
  for (const int32_t id : row.ids) row.probabilities.push_back(probability(id));
  if (next && *next >= 0 && static_cast<size_t>(*next) < logits.size()) {
    const auto id = static_cast<size_t>(*next);
    uint64_t rank = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > logits[id] || (logits[i] == logits[id] && i < id)) ++rank;
    }
    row.rank = rank;
    row.probability = probability(*next);
  }
  return row;
}

std::pair<double, double> MeanAndDeviation(std::span<const float> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const float value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / count)};
}

double RootMeanSquare(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace mk::daemon
