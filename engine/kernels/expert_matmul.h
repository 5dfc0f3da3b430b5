// Products with matrices of routed experts, decoded on the fly, each weight once for all n rows of
// x: y[n][r] = sum_c W[r][c] x[n][c].
//
// Definition of the arithmetic, the same on every processor:
//   MXFP4, MXFP4SQ: per group of 32 columns, with e[c] twice the value of the nibble of column c
//   (an
//     integer) and h half the scale of the group:
//       floats: s = a chain of fma(e[c], x[c], s) from zero, columns ascending
//               y = fma(s, h, y)              groups ascending, y from zero
//       bytes:  x as bytes q with a scale d per group (q8_rows.h)
//               y = fma(sum e[c] q[c], h d, y)         the sum is an exact integer
//   F32: lane j is one of 16; per 16 columns:
//       acc_j = fma(w[j], x[j], acc_j)        ascending; columns past the end count as 0
//     y = sum of the lanes as a tree: lane j with j+8, then j+4, j+2, j+1.
//   VQ1: per group of 16 columns and stage, with w the row of the stage's codebook:
//       s = a chain of fma(w[j], x[j], s) from zero, columns ascending
//       y = y + s                  groups ascending, stages of a group ascending, y from zero
// MXFP4 scale bytes 0 and 1 count as zero: h would be subnormal (the weights are below 2^-123).
// MXFP4SQ: h = t t smax / 2 with t = (s+1)/256, rounded after each product, left to right.
// So the bits do not depend on n, on the grouping of rows, on workers or on vector width.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/kernels/q8_rows.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

enum class ExpertKind : uint8_t {
  kF32,      // values: row-major [rows][cols]
  kMxfp4,    // packed: nibble panels (nibble_panels.h) with e8m0 scales, never 255
  kMxfp4Sq,  // the same with quadratic scales and smax
  kVq1,      // packed: per 16 columns one byte of every stage, a row of its codebook (vq1_matmul.h)
};

// Floats of a codebook as kernels read it: [256][16], then the same column after column.
inline constexpr size_t kVq1CodebookFloats = 2 * 256 * 16;

// A matrix, by reference; no alignment needed except where said.
struct ExpertMatrix {
  ExpertKind kind = ExpertKind::kF32;
  size_t rows = 0;
  size_t cols = 0;                  // a multiple of 32 (MXFP4, MXFP4SQ) or of 16 (VQ1)
  const uint8_t* packed = nullptr;  // nibble panels, best aligned to 64 bytes, or codebook indices
  float smax = 0;                   // MXFP4SQ
  const float* values = nullptr;    // F32, aligned to 4 bytes
  // VQ1: complete codebooks (vq1_matmul.h), one after the other, aligned to 64 bytes, and how many
  // they are: weights are sums of what each stage gives.
  const float* codebook = nullptr;
  size_t stages = 1;
};

// Tables of VQ1 products that were made before (vq1_matmul.h), of rows of x with one codebook.
struct SharedTables {
  const float* values = nullptr;   // [.][cols / 16][stages][256]; null: there are none
  const uint32_t* rows = nullptr;  // where the tables of an input are; null: in order
  size_t row(size_t input) const { return rows == nullptr ? input : rows[input]; }
};

// One product. x is [n][cols] with `ldx` floats between rows, y is [n][rows] with `ldy`; x and y
// may not overlap. Any n from 0 on; callers gather the tokens of an expert into consecutive rows.
// With `q8` set, MXFP4 and MXFP4SQ matrices read that instead of x; the other kinds always read x.
// `ahead`: a matrix of the same kind and shape that the same thread will want next, fetched into
// the cache on the way, piece by piece: asking for all of it at once would wait for most of it.
struct ExpertJob {
  ExpertMatrix w;
  const float* x = nullptr;
  size_t ldx = 0;
  float* y = nullptr;
  size_t ldy = 0;
  size_t n = 0;
  Q8Rows q8 = {};
  const uint8_t* ahead = nullptr;  // its `packed`, or null
  SharedTables tables = {};        // VQ1: of the matrix's codebook
};

// True if the matrix can be used with bytes.
constexpr bool TakesBytes(ExpertKind kind) {
  return kind == ExpertKind::kMxfp4 || kind == ExpertKind::kMxfp4Sq;
}

// Rows [row_begin, row_end) of one product on the calling thread: writes y[.][row_begin..row_end).
// row_begin is a multiple of 16.
void ExpertMatMul(const ExpertJob& job, size_t row_begin, size_t row_end);

// Asks for the first part of the matrix, at most 16 KiB. The matrices of small experts lie all over
// memory and end before the processor has noticed a stream; asking at once hides the waits.
void PrefetchExpert(const ExpertMatrix& matrix);

// All jobs with one barrier, cut into tasks of about equal work. A job may not read what another
// one writes. Any number of jobs. The matrices of `next`, which will be used after these, are
// fetched into the caches on the way; nothing else of it is looked at but the sizes.
Status ParallelExpertMatMul(ThreadPool& pool, std::span<const ExpertJob> jobs,
                            std::span<const ExpertJob> next = {});

}  // namespace mk
