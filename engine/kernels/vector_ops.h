// Reductions and scaled sums over vectors of any length.
//
// Sums: lane j of 16 takes elements j, j+16, j+32, ... in one chain of fused multiply-adds (or
// additions) from zero, and the lanes are summed as a tree: j with j+8, then j+4, j+2, j+1. Same
// bits on every processor. Spans of one call have equal lengths unless said otherwise; outputs may
// be the same span as an input, but not overlap it in part.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

float Dot(std::span<const float> a, std::span<const float> b);
float SumSquares(std::span<const float> x);
float Sum(std::span<const float> x);
// Largest element; -inf when empty. A NaN may or may not be returned: test sums for it.
float Max(std::span<const float> x);

// y += a x, fused.
void Axpy(float a, std::span<const float> x, std::span<float> y);
// y = a x
void Scale(float a, std::span<const float> x, std::span<float> y);
// y = a + b
void Add(std::span<const float> a, std::span<const float> b, std::span<float> y);
// y = a * b elementwise
void Multiply(std::span<const float> a, std::span<const float> b, std::span<float> y);

// y = (x * inv) * w with inv = 1 / sqrt(SumSquares(x) / len + epsilon). Returns SumSquares(x): a
// NaN or an infinity in x makes it non-finite.
float RmsNorm(std::span<const float> x, std::span<const float> w, float epsilon,
              std::span<float> y);

// RmsNorm of n rows: x [n][ldx], y [n][ldy], w [cols]. Returns false when a row's sum of squares
// is not finite (all rows are written all the same).
bool RmsNormRows(const float* x, size_t ldx, size_t n, std::span<const float> w, float epsilon,
                 float* y, size_t ldy);

// How a query or key is brought to unit length.
enum class L2Epsilon {
  kMax,   // u / max(|u|, 1e-12)
  kRoot,  // u / sqrt(|u|^2 + 1e-6)
};
// y = u * (scale / length), all in f32; NaN everywhere when u holds one. scale = 1 for keys, D^-1/2
// for queries.
void L2Normalize(std::span<const float> u, L2Epsilon epsilon, float scale, std::span<float> y);

// Softmax in place: x_i = exp(x_i - max), then divided by their sum. Returns the sum (NaN when any
// input is NaN, or when all are -inf). Nothing to do for an empty span: returns 0.
float Softmax(std::span<float> x);
// Its two halves for tiled softmax: replaces x_i by exp(x_i - max) and returns their sum. A
// max of -inf (every element masked) gives zeros and 0.
float ExpSum(std::span<float> x, float max);

}  // namespace mk
