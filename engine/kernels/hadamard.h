// The Hadamard transform in Sylvester's order: y = H x / sqrt(n). It is its own inverse.

#pragma once

#include <span>

namespace mk {

// In place; the size is a power of two. Butterflies of strides 1, 2, 4, ..., then one product with
// n^-1/2 rounded to f32.
void Hadamard(std::span<float> x);

}  // namespace mk
