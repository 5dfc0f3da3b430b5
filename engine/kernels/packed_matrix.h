// PackedMatrix: the layout in which kernels read the dense matrices of the spine.
//
// Matrices are packed once, when they are loaded: 16 rows at a time are interleaved into a panel,
// so that a register holds one column of 16 rows. Panels follow each other; the last one is padded
// with zero rows. Inside a panel:
//
//   kF32   [cols][16] floats
//   kBf16  [cols, rounded up to even][16] bfloat16, rounded half to even
//   kQ8    per group of 32 columns: 16 scales (f32), then [8][16][4] bytes: columns 4k..4k+3 of
//   each
//          row, each as round(w / scale) + 128, scale = max|w| / 127 over the group; columns past
//          the end are zeros (bytes of 128)
//
// Bytes per weight: 4, 2 and 1.125.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mk {

enum class WeightKind : uint8_t { kF32, kBf16, kQ8 };

inline constexpr size_t kPanelRows = 16;
// Columns under one scale of kQ8, and bytes of a group in a panel.
inline constexpr size_t kQ8Group = 32;
inline constexpr size_t kQ8GroupBytes = kPanelRows * (sizeof(float) + kQ8Group);
// What is added to a kQ8 weight to make its byte.
inline constexpr int kQ8Bias = 128;

constexpr size_t Q8Groups(size_t cols) {
  return (cols + kQ8Group - 1) / kQ8Group;
}

constexpr size_t PanelBytes(WeightKind kind, size_t cols) {
  switch (kind) {
    case WeightKind::kF32:
      return kPanelRows * sizeof(float) * cols;
    case WeightKind::kBf16:
      return kPanelRows * sizeof(uint16_t) * ((cols + 1) / 2 * 2);
    case WeightKind::kQ8:
      return kQ8GroupBytes * Q8Groups(cols);
  }
  return 0;
}

constexpr size_t PackedBytes(WeightKind kind, size_t rows, size_t cols) {
  return (rows + kPanelRows - 1) / kPanelRows * PanelBytes(kind, cols);
}

// A packed matrix, by reference. `panels` is 64-byte aligned and holds PackedBytes(kind, rows,
// cols). A group of whole panels is a matrix too: see RowRange.
struct PackedMatrix {
  WeightKind kind = WeightKind::kF32;
  const std::byte* panels = nullptr;
  size_t rows = 0;
  size_t cols = 0;
};

// Rows [begin, begin + count) of a packed matrix; begin is a multiple of 16.
constexpr PackedMatrix RowRange(const PackedMatrix& matrix, size_t begin, size_t count) {
  const size_t offset = begin / kPanelRows * PanelBytes(matrix.kind, matrix.cols);
  return {matrix.kind, matrix.panels + offset, count, matrix.cols};
}

// Writes `source`, row-major [count][cols], finite, to rows [first_row, first_row + count) of
// `panels`, the packed form of a matrix. Rows that are never written are zero if `panels` starts
// zeroed. Different row ranges may be packed by different threads; rows of several matrices may be
// stacked in one packed matrix. The caller guarantees that the sizes fit.
void PackRows(WeightKind kind, std::span<const float> source, size_t first_row, size_t count,
              size_t cols, std::span<std::byte> panels);

}  // namespace mk
