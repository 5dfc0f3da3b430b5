#include "engine/kernels/latent_bytes.h"

#include <algorithm>

#include "engine/kernels/q8_rows.h"

namespace mk {
namespace {

// One group of 32 columns of a row: to its lane of the packed keys, and to the values if there are
// any.
void StoreGroup(const float* in, size_t width, std::byte* panel_group, size_t lane,
                int8_t* values) {
  int8_t bytes[kQ8Group];
  float scale;
  int32_t offset;
  QuantizeRows(in, width, width, 0, 1, Q8Rows{bytes, &scale, &offset, 1, 1});
  reinterpret_cast<float*>(panel_group)[lane] = scale;
  auto* out = reinterpret_cast<uint8_t*>(panel_group) + kPanelRows * sizeof(float) + lane * 4;
  for (size_t j = 0; j < kQ8Group; ++j) {
    out[j / 4 * (4 * kPanelRows) + j % 4] = static_cast<uint8_t>(bytes[j] + kQ8Bias);
  }
  if (values != nullptr) std::copy_n(bytes, kQ8Group, values);
}

}  // namespace

void StoreLatent(const LatentShape& shape, const float* row, size_t index, std::byte* tile) {
  std::byte* group =
      tile + index / kPanelRows * PanelBytes(WeightKind::kQ8, shape.groups() * kQ8Group);
  auto* values = reinterpret_cast<int8_t*>(tile + shape.key_bytes()) + index * shape.value_stride();
  const size_t lane = index % kPanelRows;
  for (size_t c = 0; c < shape.latent; c += kQ8Group, group += kQ8GroupBytes) {
    StoreGroup(row + c, std::min(kQ8Group, shape.latent - c), group, lane, values + c);
  }
  for (size_t c = 0; c < shape.shared; c += kQ8Group, group += kQ8GroupBytes) {
    StoreGroup(row + shape.latent + c, std::min(kQ8Group, shape.shared - c), group, lane, nullptr);
  }
}

}  // namespace mk
