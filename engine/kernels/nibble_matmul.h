// The part of expert_matmul.h for MXFP4 and MXFP4SQ matrices.

#pragma once

#include <cstddef>

#include "engine/kernels/expert_matmul.h"

namespace mk {

// Rows [row_begin, row_end) of one product on the calling thread; row_begin is a multiple of 16.
void NibbleMatMul(const ExpertJob& job, size_t row_begin, size_t row_end);

}  // namespace mk
