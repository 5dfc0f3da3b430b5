// Nibble panels: the layout in which kernels read MXFP4 and MXFP4SQ matrices of experts.
//
// Sixteen rows at a time are interleaved into a panel when an expert comes into memory, so that a
// register holds the same columns of sixteen rows and no sum has to be reduced across lanes. A
// panel holds
//
//   the scale bytes  [groups][16 rows], a group being 32 columns; padded to a multiple of 64 bytes
//   the nibbles      [groups][4][16 rows][4 bytes]: of the k-th eight columns of a group, byte j
//   has
//                    column 8k + j in its low half and column 8k + 4 + j in its high half
//
// Rows past the end have scale and nibbles 0. The size is that of the file, but for padding.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mk {

inline constexpr size_t kNibbleGroup = 32;  // columns under one scale
inline constexpr size_t kNibblePanelRows = 16;
inline constexpr size_t kNibbleGroupBytes = kNibblePanelRows * kNibbleGroup / 2;

// Where the nibbles begin in a panel.
constexpr size_t NibbleScaleBytes(size_t cols) {
  return (cols / kNibbleGroup * kNibblePanelRows + 63) / 64 * 64;
}

constexpr size_t NibblePanelBytes(size_t cols) {
  return NibbleScaleBytes(cols) + cols / kNibbleGroup * kNibbleGroupBytes;
}

constexpr size_t NibbleMatrixBytes(size_t rows, size_t cols) {
  return (rows + kNibblePanelRows - 1) / kNibblePanelRows * NibblePanelBytes(cols);
}

// Makes the panels of a matrix in file layout: `nibbles` [rows][cols / 2], low half first, `scales`
// [rows][cols / 32]; cols is a multiple of 32. `panels` has NibbleMatrixBytes and is overwritten.
void PackNibblePanels(size_t rows, size_t cols, const uint8_t* nibbles, const uint8_t* scales,
                      std::span<uint8_t> panels);

}  // namespace mk
