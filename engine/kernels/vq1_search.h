// The nearest rows of a codebook, of many groups of sixteen values at a time.
//
// Distance of a group v to a row c: the f32 sum of (v[j] - c[j])^2, j ascending, every product and
// sum rounded; the nearest row is the one of the smallest distance, the lowest of equal ones. The
// same bits on every processor, and those of NearestVq1 (engine/format/vq1.h).

#pragma once

#include <cstddef>
#include <cstdint>

namespace mk {

// `codebook`: complete (vq1_matmul.h), aligned to 64 bytes. values: [count][16], finite. Writes
// [count] indices, and [count] distances unless that is null.
void FindNearestVq1(const float* codebook, const float* values, size_t count, uint8_t* indices,
                    float* distances);

}  // namespace mk
