// The compute part of matmul.h: one rectangle of outputs on the calling thread.

#pragma once

#include <cstddef>

#include "engine/kernels/matmul.h"

namespace mk {

// Panels that are worked on together when x has one row, and the most rows of x in a register tile:
// tasks of whole multiples run best. Any cut gives the same bits.
inline constexpr size_t kPanelGroup = 8;
inline constexpr size_t kRowTile = 12;

// Outputs of panels [panel_begin, panel_end) and rows of x [row_begin, row_end).
void MatMulTile(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                size_t row_end);
// The same for kQ8 matrices.
void Q8MatMulTile(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                  size_t row_end);

}  // namespace mk
