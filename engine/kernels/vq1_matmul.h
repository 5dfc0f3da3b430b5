// The part of expert_matmul.h for VQ1 matrices, and the tables that it works with.
//
// A group of sixteen columns has only 256 possible weights: the rows of the codebook. So the
// products of a group of x with all of them are made once, as a table, and every row of the matrix
// then costs one look-up and one addition per group. The entries of a table are the very sums that
// the definition speaks of, so that a table, or none, leaves no trace in the bits. Tables of an
// input are good for all matrices with its codebook: a layer makes them once for all its experts.

#pragma once

#include <cstddef>

#include "engine/kernels/expert_matmul.h"

namespace mk {

// Floats of the tables of one input: [cols / 16][stages][256].
constexpr size_t Vq1TableFloats(size_t cols, size_t stages) {
  return cols / 16 * stages * 256;
}

// Completes a codebook for the kernels: of kVq1CodebookFloats floats, aligned to 64 bytes, the
// first half are its entries, [256][16]; the second half is written.
void CompleteVq1Codebook(float* codebook);

// The tables of x, [cols], with complete codebooks.
void BuildVq1Tables(const float* codebook, size_t stages, const float* x, size_t cols,
                    float* tables);

// Rows [row_begin, row_end) of one product on the calling thread.
void Vq1MatMul(const ExpertJob& job, size_t row_begin, size_t row_end);

// The ways to the same result, for tests and measurements.
enum class Vq1Form {
  kGather,  // no tables: sixteen multiplications per byte
  kTables,  // one input after the other, with the tables of the job or its own
  kLanes,   // sixteen inputs at a time, tables of sixteen lanes
};
void Vq1MatMulAs(Vq1Form form, const ExpertJob& job, size_t row_begin, size_t row_end);

}  // namespace mk
