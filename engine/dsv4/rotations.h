// The rotation angles of the positions of a batch. Layers with and without compression turn at
// different rates; all layers of a kind share one table.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/dsv4/batch.h"
#include "engine/dsv4/shape.h"

namespace mk::dsv4 {

class Rotations {
 public:
  Rotations(const Dsv4Shape& shape, const Batch& batch);

  // Fills the tables.
  Status Compute(const Batch& batch);

  // Angles of a row of the batch in a layer: [R], see rotary.h.
  std::span<const float> OfRow(size_t layer, size_t row) const {
    const float* table = shape_.ratio[layer] > 0 ? compressed_ : plain_;
    return {table + row * shape_.rope, shape_.rope};
  }
  // Of a position of an item in a layer with compression; made in `buffer` [R] when it lies before
  // the batch.
  std::span<const float> OfPosition(const BatchItem& item, size_t position,
                                    std::span<float> buffer) const;

 private:
  const Dsv4Shape& shape_;
  float* plain_;       // [rows][R]
  float* compressed_;  // [rows][R]
};

}  // namespace mk::dsv4
