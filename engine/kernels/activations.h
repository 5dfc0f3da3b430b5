// Elementwise functions. Accurate to a few ulp of the exact value; same bits on every processor
// (own polynomials of fused multiply-adds). NaN gives NaN. Outputs may be the same span as an
// input. All spans of a call have equal lengths.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

// e^x; 0 below -87.336 (where the result would be subnormal), +inf above 88.722.
void Exp(std::span<const float> x, std::span<float> y);
void Tanh(std::span<const float> x, std::span<float> y);
// 1 / (1 + e^-x)
void Sigmoid(std::span<const float> x, std::span<float> y);
// x / (1 + e^-x)
void Silu(std::span<const float> x, std::span<float> y);
// y = x sigmoid(gate): an output gate.
void SigmoidGate(std::span<const float> gate, std::span<const float> x, std::span<float> y);

// Caps of the SiTU activation.
struct SituCaps {
  float gate = 4.0f;  // beta
  float up = 25.0f;   // beta2
};
// y = [beta tanh(g / beta) sigmoid(g)] [beta2 tanh(u / beta2)]; g and u uncapped.
void Situ(std::span<const float> g, std::span<const float> u, SituCaps caps, std::span<float> y);

// Log-decay of gated delta attention, per channel c: y = floor sigmoid(rate_c (z_c + bias_c)),
// floor < 0. `rate` is exp(A), one value per element.
void DecayGate(std::span<const float> z, std::span<const float> bias, std::span<const float> rate,
               float floor, std::span<float> y);

}  // namespace mk
