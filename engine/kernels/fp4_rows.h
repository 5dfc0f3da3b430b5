// Rows that are rounded to FP4 in blocks: queries and keys of an indexer.
//
// Per block of 32 values: m = max(max|v|, 6 * 2^-126), the scale is 2^e with e the least integer
// such that m <= 6 * 2^e, and a value becomes e2m1(v / 2^e) * 2^e, the quotient rounded to the
// nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives, ties to the even code.
//
// Doubled, these are the integers 0, 1, 2, 3, 4, 6, 8, 12, and a product of two blocks is an exact
// integer times a power of two. So queries are kept as Q8Rows (q8_rows.h) and keys as rows of a kQ8
// matrix (packed_matrix.h), with scale 2^(e-1), and MatMul sums their products over ascending
// blocks, rounding only between blocks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/kernels/packed_matrix.h"
#include "engine/kernels/q8_rows.h"

namespace mk {

inline constexpr size_t kFp4Block = 32;
static_assert(kFp4Block == kQ8Group);

// Rounds x, whole blocks, in place and writes it to a row of Q8Rows. Returns false when a value is
// not finite; the outputs are then undefined.
bool RoundToFp4(std::span<float> x, const Q8Rows& out);

// The same to row `index` of a matrix in packed form kQ8 with x.size() columns.
bool StoreFp4Row(std::span<float> x, size_t index, std::byte* panels);

}  // namespace mk
