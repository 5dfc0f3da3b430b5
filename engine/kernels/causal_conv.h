// Causal depthwise convolution over time followed by SiLU.

#pragma once

#include <cstddef>

namespace mk {

inline constexpr size_t kMaxConvTaps = 16;

// Channel c of position t: y = silu(sum_k w[k][c] u[t - (taps-1) + k][c]), taps ascending (oldest
// input first): a product, then fused multiply-adds. Inputs before position 0 come from `history`.
struct CausalConv {
  size_t channels = 0;
  size_t taps = 0;                 // 1 <= taps <= kMaxConvTaps
  const float* weights = nullptr;  // [taps][channels]: the transpose of the file's [channels][taps]
};

// n positions: x [n][ldx] the inputs before convolution, y [n][ldy], both `channels` wide and
// distinct; history [taps-1][channels], row 0 the oldest, zeros at the start of a sequence. Writes
// y, then replaces history by the last taps-1 inputs. Same bits however a run of positions is cut
// into calls. Channels [begin, end) only, so that workers can share one call: a channel is read
// and written by nobody else.
void CausalConvSilu(const CausalConv& conv, size_t begin, size_t end, const float* x, size_t ldx,
                    size_t n, float* history, float* y, size_t ldy);
// What that does to `history`, and nothing else.
void AdvanceConvHistory(const CausalConv& conv, size_t begin, size_t end, const float* x,
                        size_t ldx, size_t n, float* history);

}  // namespace mk
