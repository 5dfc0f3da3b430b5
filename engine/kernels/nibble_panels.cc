#include "engine/kernels/nibble_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mk {
namespace {

static_assert(std::endian::native == std::endian::little, "model files and panels are");

// Half a word, four columns, to a byte each.
constexpr uint32_t Spread(uint32_t half) {
  const uint32_t pairs = (half | half << 8) & 0x00ff00ffu;
  return (pairs | pairs << 4) & 0x0f0f0f0fu;
}

// Eight columns of a row, four bytes of the file: columns 0 to 3 become the low halves of the
// bytes, columns 4 to 7 the high ones.
constexpr uint32_t SplitEight(uint32_t columns) {
  return Spread(columns & 0xffffu) | Spread(columns >> 16) << 4;
}

// Up to sixteen rows, the first ones of a panel. `nibbles` and `scales` are those of the first row.
void PackPanel(size_t rows, size_t groups, const uint8_t* nibbles, const uint8_t* scales,
               uint8_t* panel) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t g = 0; g < groups; ++g) {
      panel[g * kNibblePanelRows + row] = scales[row * groups + g];
    }
  }
  const size_t row_bytes = groups * kNibbleGroup / 2;
  uint8_t* out = panel + NibbleScaleBytes(groups * kNibbleGroup);
  // Sixteen columns of every row at a time: two blocks of [16 rows][4 bytes].
  constexpr size_t kBlock = kNibblePanelRows * sizeof(uint32_t);
  for (size_t at = 0; at < row_bytes; at += sizeof(uint64_t), out += 2 * kBlock) {
    for (size_t row = 0; row < rows; ++row) {
      uint64_t columns;
      std::memcpy(&columns, nibbles + row * row_bytes + at, sizeof columns);
      const uint32_t first = SplitEight(static_cast<uint32_t>(columns));
      const uint32_t second = SplitEight(static_cast<uint32_t>(columns >> 32));
      std::memcpy(out + row * sizeof first, &first, sizeof first);
      std::memcpy(out + kBlock + row * sizeof second, &second, sizeof second);
    }
  }
}

}  // namespace

void PackNibblePanels(size_t rows, size_t cols, const uint8_t* nibbles, const uint8_t* scales,
                      std::span<uint8_t> panels) {
  const size_t groups = cols / kNibbleGroup;
  if (rows % kNibblePanelRows != 0 || NibbleScaleBytes(cols) != groups * kNibblePanelRows) {
    std::fill(panels.begin(), panels.end(), uint8_t{0});
  }
  for (size_t row = 0; row < rows; row += kNibblePanelRows) {
    PackPanel(std::min(kNibblePanelRows, rows - row), groups, nibbles + row * (cols / 2),
              scales + row * groups,
              panels.data() + row / kNibblePanelRows * NibblePanelBytes(cols));
  }
}

}  // namespace mk
