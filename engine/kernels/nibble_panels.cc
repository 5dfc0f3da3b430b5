#include "engine/kernels/nibble_panels.h"

#include <algorithm>
#include <cstring>

namespace mk {
namespace {

// Eight columns of a row: four bytes of the file, pairs of columns, to halves four columns apart.
void SplitEight(const uint8_t* in, uint8_t* out) {
  const auto nibble = [in](size_t c) { return c % 2 == 0 ? in[c / 2] & 15 : in[c / 2] >> 4; };
  for (size_t j = 0; j < 4; ++j) {
    out[j] = static_cast<uint8_t>(nibble(j) | nibble(j + 4) << 4);
  }
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
