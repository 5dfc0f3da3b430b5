// Reading from and writing to several residual streams, X [streams][width].
//
//   read:   u[i] = sum_j pre[j] X[j][i]
//   write:  X[b][i] <- post[b] y[i] + sum_a comb[a][b] X[a][i]
//
// Both sums are chains of fused multiply-adds over ascending j or a, from zero and from the product
// post y. Same bits on every processor.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

inline constexpr size_t kMaxStreams = 16;

// u has the width of a stream, x that of all of them, pre one value per stream.
void ReadStreams(std::span<const float> x, std::span<const float> pre, std::span<float> u);

// comb [streams][streams]: from stream a (row) to stream b (column).
void WriteStreams(std::span<const float> y, std::span<const float> post,
                  std::span<const float> comb, std::span<float> x);

}  // namespace mk
