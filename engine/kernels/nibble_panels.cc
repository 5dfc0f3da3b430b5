#include "engine/kernels/nibble_panels.h"

#include <algorithm>
#include <cstring>

namespace mk {
namespace {

// Eight columns of a row: four bytes of the file, pairs of columns, to halves four columns apart.
void SplitEight(const uint8_t* in, uint8_t* out) {
  // Columns 0 to 3 go to the low half of the word and 4 to 7 to the high one, a byte each.
  const uint32_t columns = static_cast<uint32_t>(in[0]) | static_cast<uint32_t>(in[1]) << 8 |
                           static_cast<uint32_t>(in[2]) << 16 | static_cast<uint32_t>(in[3]) << 24;
  uint64_t spread = (columns & 0xffffu) | static_cast<uint64_t>(columns >> 16) << 32;
  spread = (spread | spread << 8) & 0x00ff00ff00ff00ffu;
  spread = (spread | spread << 4) & 0x0f0f0f0f0f0f0f0fu;
  const auto bytes = static_cast<uint32_t>(spread | spread >> 28);
  for (size_t j = 0; j < 4; ++j) out[j] = static_cast<uint8_t>(bytes >> 8 * j);
}

}  // namespace

void PackNibblePanels(size_t rows, size_t cols, const uint8_t* nibbles, const uint8_t* scales,
                      std::span<uint8_t> panels) {
  const size_t groups = cols / kNibbleGroup;
  if (rows % kNibblePanelRows != 0 || NibbleScaleBytes(cols) != groups * kNibblePanelRows) {
    std::fill(panels.begin(), panels.end(), uint8_t{0});
  }
  for (size_t row = 0; row < rows; ++row) {
    uint8_t* const panel = panels.data() + row / kNibblePanelRows * NibblePanelBytes(cols);
    const size_t lane = row % kNibblePanelRows;
    for (size_t g = 0; g < groups; ++g) {
      panel[g * kNibblePanelRows + lane] = scales[row * groups + g];
      const uint8_t* in = nibbles + (row * groups + g) * (kNibbleGroup / 2);
      uint8_t* out = panel + NibbleScaleBytes(cols) + g * kNibbleGroupBytes + 4 * lane;
      for (size_t k = 0; k < 4; ++k) SplitEight(in + 4 * k, out + k * 4 * kNibblePanelRows);
    }
  }
}

}  // namespace mk
