#include "engine/kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/bf16.h"

namespace mk {
namespace {

void PackF32Row(const float* in, size_t cols, std::byte* panel, size_t lane) {
  auto* out = reinterpret_cast<float*>(panel) + lane;
  for (size_t c = 0; c < cols; ++c) out[c * kPanelRows] = in[c];
}

void PackBf16Row(const float* in, size_t cols, std::byte* panel, size_t lane) {
  auto* out = reinterpret_cast<uint16_t*>(panel) + lane;
  for (size_t c = 0; c < cols; ++c) out[c * kPanelRows] = ToBf16(in[c]);
}

void PackQ8Row(const float* in, size_t cols, std::byte* panel, size_t lane) {
  for (size_t g = 0; g < Q8Groups(cols); ++g, panel += kQ8GroupBytes) {
    const size_t first = g * kQ8Group;
    const size_t width = std::min(kQ8Group, cols - first);
    float largest = 0;
    for (size_t j = 0; j < width; ++j) largest = std::max(largest, std::fabs(in[first + j]));
    const float scale = largest / 127.0f;
    reinterpret_cast<float*>(panel)[lane] = scale;
    auto* out = reinterpret_cast<uint8_t*>(panel) + kPanelRows * sizeof(float) + lane * 4;
    for (size_t j = 0; j < kQ8Group; ++j) {
      // Ties to even, the default rounding. A subnormal scale counts as zero.
      const float q = j < width && scale >= 1.17549435e-38f
                          ? std::clamp(std::nearbyint(in[first + j] / scale), -127.0f, 127.0f)
                          : 0.0f;
      out[j / 4 * (4 * kPanelRows) + j % 4] = static_cast<uint8_t>(static_cast<int>(q) + kQ8Bias);
    }
  }
}

}  // namespace

void PackRows(WeightKind kind, std::span<const float> source, size_t first_row, size_t count,
              size_t cols, std::span<std::byte> panels) {
  for (size_t i = 0; i < count; ++i) {
    const size_t row = first_row + i;
    std::byte* const panel = panels.data() + row / kPanelRows * PanelBytes(kind, cols);
    const float* const in = source.data() + i * cols;
    const size_t lane = row % kPanelRows;
    switch (kind) {
      case WeightKind::kF32:
        PackF32Row(in, cols, panel, lane);
        break;
      case WeightKind::kBf16:
        PackBf16Row(in, cols, panel, lane);
        break;
      case WeightKind::kQ8:
        PackQ8Row(in, cols, panel, lane);
        break;
    }
  }
}

}  // namespace mk
