#include "engine/dsv4/rotations.h"

#include "engine/kernels/rotary.h"

namespace mk::dsv4 {

Rotations::Rotations(const Dsv4Shape& shape, const Batch& batch)
    : shape_(shape),
      plain_(batch.scratch.Allocate<float>(batch.rows * shape.rope).data()),
      compressed_(batch.scratch.Allocate<float>(batch.rows * shape.rope).data()) {}

Status Rotations::Compute(const Batch& batch) {
  const size_t width = shape_.rope;
  for (const BatchItem& item : batch.items) {
    Status done = ForRows(batch, item.tokens, [&](size_t begin, size_t end) {
      for (size_t t = begin; t < end; ++t) {
        const size_t at = (item.first_row + t) * width;
        RotaryAngles(shape_.plain_frequencies, item.position + t, {plain_ + at, width});
        RotaryAngles(shape_.compressed_frequencies, item.position + t, {compressed_ + at, width});
      }
    });
    if (!done) return done;
  }
  return {};
}

std::span<const float> Rotations::OfPosition(const BatchItem& item, size_t position,
                                             std::span<float> buffer) const {
  if (position >= item.position) {
    const size_t row = item.first_row + position - item.position;
    return {compressed_ + row * shape_.rope, shape_.rope};
  }
  RotaryAngles(shape_.compressed_frequencies, position, buffer);
  return buffer;
}

}  // namespace mk::dsv4
