// Q8Rows: activations as bytes with a scale per group of 32, the form in which products with kQ8
// matrices and, in the q8 mode, with MXFP4 experts read them.
//
// Per group g of a row x: scale = max|x| / 127, q = round(x / scale), ties to even, computed as a
// product with 127 / max|x|; a group whose largest value is below 2^-100 counts as zero. A group
// with a value that is not finite gets the scale NaN, which reaches every product with it. Columns
// past the end count as zero. Same bits on every processor.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/packed_matrix.h"

namespace mk {

// Rows by reference, `stride` groups apart.
struct Q8Rows {
  int8_t* values = nullptr;    // [rows][stride][32]
  float* scales = nullptr;     // [rows][stride]
  int32_t* offsets = nullptr;  // [rows][stride]: -128 times the sum of the values
  size_t groups = 0;           // of a row
  size_t stride = 0;

  // The rows from `row` on.
  Q8Rows From(size_t row) const { return Shift(row * stride, groups); }
  // Groups [first, first + count) of every row.
  Q8Rows Columns(size_t first, size_t count) const { return Shift(first, count); }

 private:
  Q8Rows Shift(size_t offset, size_t count) const {
    return {values + offset * kQ8Group, scales + offset, offsets + offset, count, stride};
  }
};

// Two bytes per activation: what `high` leaves is quantised once more. A product with both adds,
// group by group, the high and then the low part.
struct Q8Activations {
  Q8Rows high;
  Q8Rows low;  // without values: one byte only

  Q8Activations From(size_t row) const {
    Q8Activations rest{high.From(row), {}};
    if (low.values != nullptr) rest.low = low.From(row);
    return rest;
  }
  Q8Activations Columns(size_t first, size_t count) const {
    Q8Activations part{high.Columns(first, count), {}};
    if (low.values != nullptr) part.low = low.Columns(first, count);
    return part;
  }
};

// Quantises rows [begin, end) of x, `cols` floats each, `ldx` apart.
void QuantizeRows(const float* x, size_t ldx, size_t cols, size_t begin, size_t end,
                  const Q8Rows& out);
// In two bytes. x - q scale is rounded once per value.
void QuantizeRows(const float* x, size_t ldx, size_t cols, size_t begin, size_t end,
                  const Q8Activations& out);

}  // namespace mk
