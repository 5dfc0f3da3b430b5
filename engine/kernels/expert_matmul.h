// Products with matrices of routed experts, which stay in their file layout: y[n][r] =
// sum_c W[r][c] x[n][c], W decoded on the fly, each weight once for all n rows of x.
//
// Definition of the arithmetic, the same on every processor; lane j is one of 16:
//   MXFP4, MXFP4SQ: per group of 32 columns, with e[c] twice the value of the nibble of column c
//     (an integer) and h half the scale of the group:
//       p_j   = fma(e[j+16], x[j+16], e[j] * x[j])
//       acc_j = fma(p_j, h, acc_j)                      groups ascending, acc from zero
//   F32, VQ1: per 16 columns, w the weights or the row of the codebook:
//       acc_j = fma(w[j], x[j], acc_j)                  ascending; columns past the end count as 0
//   y = sum of the lanes as a tree: lane j with j+8, then j+4, j+2, j+1.
// MXFP4 scale bytes 0 and 1 count as zero: h would be subnormal (the weights are below 2^-123).
// MXFP4SQ: h = t t smax / 2 with t = (s+1)/256, rounded after each product, left to right.
// So the bits do not depend on n, on the grouping of rows, on workers or on vector width.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

enum class ExpertKind : uint8_t {
  kF32,      // values: row-major [rows][cols]
  kMxfp4,    // packed [rows][cols/2], scales [rows][cols/32]; e8m0, never 255
  kMxfp4Sq,  // the same with quadratic scales and smax
  kVq1,      // packed: one byte per 16 columns, a row of the codebook
};

// A matrix in file layout, by reference; no alignment needed except for the codebook's.
struct ExpertMatrix {
  ExpertKind kind = ExpertKind::kF32;
  size_t rows = 0;
  size_t cols = 0;                  // a multiple of 32 (MXFP4, MXFP4SQ) or of 16 (VQ1)
  const uint8_t* packed = nullptr;  // nibbles, or codebook indices
  const uint8_t* scales = nullptr;  // MXFP4, MXFP4SQ
  float smax = 0;                   // MXFP4SQ
  const float* values = nullptr;    // F32, aligned to 4 bytes
  const float* codebook = nullptr;  // VQ1: [256][16], aligned to 64 bytes
};

// One product. x is [n][cols] with `ldx` floats between rows, y is [n][rows] with `ldy`; x and y
// may not overlap. Any n from 0 on; callers gather the tokens of an expert into consecutive rows.
struct ExpertJob {
  ExpertMatrix w;
  const float* x = nullptr;
  size_t ldx = 0;
  float* y = nullptr;
  size_t ldy = 0;
  size_t n = 0;
};

// Rows [row_begin, row_end) of one product on the calling thread: writes y[.][row_begin..row_end).
void ExpertMatMul(const ExpertJob& job, size_t row_begin, size_t row_end);

// All jobs with one barrier, cut into tasks of about equal work. A job may not read what another
// one writes. Any number of jobs.
Status ParallelExpertMatMul(ThreadPool& pool, std::span<const ExpertJob> jobs);

}  // namespace mk
