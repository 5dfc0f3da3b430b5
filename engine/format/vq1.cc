#include "engine/format/vq1.h"

#include <cmath>
#include <string>

namespace mk {
namespace {

Status CheckSizes(size_t values, size_t blob, size_t codebook, size_t rows, size_t cols) {
  if (codebook != kVq1CodebookSize) {
    return Fail(ErrorCode::kInvalidArgument,
                "the VQ1 codebook must be 256 x 16, not " + std::to_string(codebook) + " values");
  }
  if (cols == 0 || cols % kVq1Group != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "VQ1 needs columns in multiples of 16, not " + std::to_string(cols));
  }
  if (values != rows * cols || blob != rows * cols / kVq1Group) {
    return Fail(ErrorCode::kInvalidArgument, "VQ1 buffers do not fit a matrix of " +
                                                 std::to_string(rows) + " x " +
                                                 std::to_string(cols));
  }
  return {};
}

}  // namespace

uint8_t NearestVq1(std::span<const float, 16> values, std::span<const float> codebook,
                   std::span<const float> weights) {
  size_t best = 0;
  float best_sum = 0;
  for (size_t entry = 0; entry < kVq1Entries; ++entry) {
    const float* center = codebook.data() + entry * kVq1Group;
    float sum = 0;
    for (size_t i = 0; i < kVq1Group; ++i) {
      const float difference = values[i] - center[i];
      const float square = difference * difference;
      sum += weights.empty() ? square : weights[i] * square;
    }
    if (entry == 0 || sum < best_sum) {
      best = entry;
      best_sum = sum;
    }
  }
  return static_cast<uint8_t>(best);
}

Status EncodeVq1(std::span<const float> values, size_t rows, size_t cols,
                 std::span<const float> codebook, std::span<const float> column_weights,
                 std::span<std::byte> blob) {
  const Status sizes = CheckSizes(values.size(), blob.size(), codebook.size(), rows, cols);
  if (!sizes) return sizes;
  if (!column_weights.empty() && column_weights.size() != cols) {
    return Fail(ErrorCode::kInvalidArgument,
                "VQ1 column weights must be " + std::to_string(cols) + " values");
  }
  for (size_t g = 0; g < blob.size(); ++g) {
    const size_t first = g * kVq1Group;
    const std::span<const float, 16> group(values.data() + first, kVq1Group);
    for (size_t i = 0; i < kVq1Group; ++i) {
      if (!std::isfinite(group[i])) {
        return Fail(ErrorCode::kNumeric, "weight [" + std::to_string(first / cols) + "][" +
                                             std::to_string(first % cols + i) + "] is not finite");
      }
    }
    const auto weights =
        column_weights.empty() ? column_weights : column_weights.subspan(first % cols, kVq1Group);
    blob[g] = static_cast<std::byte>(NearestVq1(group, codebook, weights));
  }
  return {};
}

Status DecodeVq1(std::span<const std::byte> blob, size_t rows, size_t cols,
                 std::span<const float> codebook, std::span<float> values) {
  const Status sizes = CheckSizes(values.size(), blob.size(), codebook.size(), rows, cols);
  if (!sizes) return sizes;
  for (size_t g = 0; g < blob.size(); ++g) {
    const float* center = codebook.data() + std::to_integer<size_t>(blob[g]) * kVq1Group;
    for (size_t i = 0; i < kVq1Group; ++i) values[g * kVq1Group + i] = center[i];
  }
  return {};
}

}  // namespace mk
