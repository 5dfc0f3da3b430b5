// What an indexer makes of the products of its heads with a key:
//
//   score[t] = sum_h max(0, products[h][t]) weights[h]
//
// a chain of fused multiply-adds over ascending heads from zero. Same bits on every processor.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

// products: [weights.size()] rows of scores.size() values, `stride` apart.
void IndexScores(const float* products, size_t stride, std::span<const float> weights,
                 std::span<float> scores);

}  // namespace mk
