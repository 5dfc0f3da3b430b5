// Elementwise functions of DeepSeek-V4's experts. Same bits on every processor; NaN gives NaN.

#pragma once

#include <span>

namespace mk {

// y = sqrt(softplus(x)): softplus(x) = ln(1 + e^x), and x itself above 20. Accurate to a few ulp
// down to e^-87, below which it is 0. `y` may be `x`.
void SqrtSoftplus(std::span<const float> x, std::span<float> y);

// y = weight * silu(min(gate, limit)) * clamp(up, -limit, limit), products from the left; a limit
// of 0 or below limits nothing. `y` may be `gate`.
void ClampedSwiglu(std::span<const float> gate, std::span<const float> up, float weight,
                   float limit, std::span<float> y);

}  // namespace mk
