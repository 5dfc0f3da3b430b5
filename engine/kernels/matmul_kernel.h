// The compute part of matmul.h: one rectangle of outputs on the calling thread.

#pragma once

#include <cstddef>

#include "engine/kernels/matmul.h"

namespace mk {

// Panels that are worked on together when x has few rows, and rows of x in one register tile;
// tasks are cut at their multiples. Any cut gives the same bits.
inline constexpr size_t kPanelGroup = 4;
inline constexpr size_t kRowTile = 12;

// Outputs of panels [panel_begin, panel_end) and rows of x [row_begin, row_end).
void MatMulTile(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                size_t row_end);

}  // namespace mk
