// Products with the dense matrices of the spine: y[n][r] = sum_c W[r][c] x[n][c].
//
// Definition of the arithmetic, the same on every processor:
//   kF32, kBf16: the columns are cut into runs of kChainColumns; inside a run one chain of fused
//     multiply-adds per output goes over ascending columns from zero; the sums of the runs are
//     added in ascending order, from zero. x is f32 for both: with weights that bfloat16 holds
//     exactly the two give the same bits.
//   kQ8: x is read as bytes with a scale per group of 32 columns (q8_rows.h). Per group the integer
//     dot product is exact; y = fma(dot, w_scale * x_scale, y) over ascending groups from zero.
//     With activations of two bytes the low part follows the high one in every group.
// Every output is a chain of its own, so the bits do not depend on the number of rows n, on how
// outputs are grouped into registers or tasks, on the number of workers, or on the width of the
// vectors.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/kernels/q8_rows.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

// Columns of one chain of multiply-adds. Short chains lose less to rounding: with 16 the hidden
// states of a model are about a third closer to exact arithmetic than with 256.
inline constexpr size_t kChainColumns = 16;

// One product. x is [n][cols] with `ldx` floats between rows, y is [n][rows] with `ldy`; both need
// no alignment, may not overlap, and any n from 0 on is served. For kQ8 matrices x is given as `q8`
// instead, quantised from rows of at least w.cols values.
struct MatMulJob {
  PackedMatrix w;
  const float* x = nullptr;
  size_t ldx = 0;
  float* y = nullptr;
  size_t ldy = 0;
  size_t n = 0;
  Q8Activations q8 = {};
};

// On the calling thread. Set FlushDenormals (engine/parallel) for the bits of a forward pass.
void MatMul(const MatMulJob& job);

// All jobs with one barrier: the outputs of every job are cut into tasks along rows and, for large
// n, along x, of about equal work. A job may not read what another one writes.
Status ParallelMatMul(ThreadPool& pool, std::span<const MatMulJob> jobs);

}  // namespace mk
