// Rotary position embedding of adjacent pairs: (x[2i], x[2i+1]) turns by the angle t_i = p f_i.
//
//   f_i = 1 / theta^(2i/R),  i = 0 .. R/2-1
//
// t_i is one product of floats; at large positions its rounding error is large, and models were
// trained with it. Cosine and sine of that float are rounded from f64.
//
// YaRN stretches the slow pairs for contexts beyond the original length n0:
//
//   turns(b) = R ln(n0 / (2 pi b)) / (2 ln theta)          the pair that makes b turns in n0
//   low = max(floor(turns(beta_fast)), 0),  high = min(ceil(turns(beta_slow)), R - 1)
//   ramp_i = clamp((i - low) / (max(high, low + 1) - low), 0, 1)
//   f_i <- f_i / factor * ramp_i + f_i (1 - ramp_i)

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace mk {

struct YarnScaling {
  float factor = 16;
  float beta_fast = 32;
  float beta_slow = 1;
  double original_length = 65536;
};

// f_i of a rotated width R (even), [R / 2]. theta > 1.
std::vector<float> RotaryFrequencies(size_t width, float theta,
                                     const std::optional<YarnScaling>& yarn = std::nullopt);

// Cosines, then sines, of the angles at a position: [2][R / 2].
void RotaryAngles(std::span<const float> frequencies, size_t position, std::span<float> out);

// Turns x [R] in place by `angles`, or back.
void Rotate(std::span<const float> angles, std::span<float> x);
void RotateBack(std::span<const float> angles, std::span<float> x);

}  // namespace mk
