// Products with dense f32 matrices: y[n][r] = sum_c W[r][c] x[n][c].
//
// Definition of the arithmetic, the same on every processor: the columns are cut into blocks of
// kColumnBlock; inside a block one chain of fused multiply-adds per output runs over ascending
// columns from zero; the sums of the blocks are added in ascending order. Every output is a chain
// of its own, so the bits do not depend on the number of rows n, on how outputs are grouped into
// registers or tasks, on the number of workers, or on the width of the vectors.
//
// Matrices are packed once, when they are loaded: 16 rows at a time are interleaved into a panel
// [cols][16], panels follow each other, the last one is padded with zeros. A panel is what a
// 512-bit register reads in one load per column.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

inline constexpr size_t kPanelRows = 16;
inline constexpr size_t kColumnBlock = 256;

// A packed matrix, by reference. `panels` is 64-byte aligned and holds PackedSize(rows, cols)
// floats. A group of whole panels is a matrix too: see RowRange.
struct PackedMatrix {
  const float* panels = nullptr;
  size_t rows = 0;
  size_t cols = 0;
};

// Floats in the packed form: rows rounded up to 16, times cols.
constexpr size_t PackedSize(size_t rows, size_t cols) {
  return (rows + kPanelRows - 1) / kPanelRows * kPanelRows * cols;
}

// Rows [begin, begin + count) of a packed matrix; begin is a multiple of 16.
constexpr PackedMatrix RowRange(const PackedMatrix& matrix, size_t begin, size_t count) {
  return {matrix.panels + begin * matrix.cols, count, matrix.cols};
}

// Writes `source`, row-major [count][cols], to rows [first_row, first_row + count) of `panels`,
// the packed form of a matrix of `rows` rows. Padding rows are not written: `panels` starts zeroed.
// Different row ranges may be packed by different threads. Rows of several matrices may be stacked
// in one packed matrix. The caller guarantees that the sizes fit.
void PackRows(std::span<const float> source, size_t first_row, size_t count, size_t cols,
              std::span<float> panels);

// One product. x is [n][cols] with `ldx` floats between rows, y is [n][rows] with `ldy`; both need
// no alignment, may not overlap, and any n from 0 on is served.
struct MatMulJob {
  PackedMatrix w;
  const float* x = nullptr;
  size_t ldx = 0;
  float* y = nullptr;
  size_t ldy = 0;
  size_t n = 0;
};

// On the calling thread. Set FlushDenormals (engine/parallel) for the bits of a forward pass.
void MatMul(const MatMulJob& job);

// All jobs with one barrier: the outputs of every job are cut into tasks along rows and, for large
// n, along x, of about equal work. A job may not read what another one writes.
Status ParallelMatMul(ThreadPool& pool, std::span<const MatMulJob> jobs);

}  // namespace mk
