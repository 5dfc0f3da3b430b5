#include "engine/kernels/q8_lanes.h"

namespace mk {
namespace {

constexpr size_t kScaleBytes = kPanelRows * sizeof(float);

size_t PanelOffset(size_t groups, size_t row) {
  return row / kPanelRows * groups * kQ8GroupBytes;
}

// Where column j of a group lies behind the scales.
size_t ByteOffset(size_t lane, size_t j) {
  return kScaleBytes + j / 4 * (4 * kPanelRows) + lane * 4 + j % 4;
}

}  // namespace

void ReadQ8Codes(const std::byte* panels, size_t groups, size_t row, int8_t* codes) {
  const std::byte* group = panels + PanelOffset(groups, row);
  for (size_t g = 0; g < groups; ++g, group += kQ8GroupBytes) {
    for (size_t j = 0; j < kQ8Group; ++j) {
      const int byte = static_cast<int>(group[ByteOffset(row % kPanelRows, j)]);
      *codes++ = static_cast<int8_t>(byte - kQ8Bias);
    }
  }
}

void ReadQ8Scales(const std::byte* panels, size_t groups, size_t row, float* scales) {
  const std::byte* group = panels + PanelOffset(groups, row);
  for (size_t g = 0; g < groups; ++g, group += kQ8GroupBytes) {
    scales[g] = reinterpret_cast<const float*>(group)[row % kPanelRows];
  }
}

void WriteQ8Codes(const int8_t* codes, size_t groups, size_t row, std::byte* panels) {
  std::byte* group = panels + PanelOffset(groups, row);
  for (size_t g = 0; g < groups; ++g, group += kQ8GroupBytes) {
    for (size_t j = 0; j < kQ8Group; ++j) {
      group[ByteOffset(row % kPanelRows, j)] = static_cast<std::byte>(*codes++ + kQ8Bias);
    }
  }
}

void WriteQ8Scales(const float* scales, size_t groups, size_t row, std::byte* panels) {
  std::byte* group = panels + PanelOffset(groups, row);
  for (size_t g = 0; g < groups; ++g, group += kQ8GroupBytes) {
    reinterpret_cast<float*>(group)[row % kPanelRows] = scales[g];
  }
}

}  // namespace mk
