#include "engine/kernels/hadamard.h"

#include <cmath>
#include <cstddef>

namespace mk {

void Hadamard(std::span<float> x) {
  const size_t n = x.size();
  for (size_t stride = 1; stride < n; stride *= 2) {
    for (size_t block = 0; block < n; block += 2 * stride) {
      float* const low = x.data() + block;
      float* const high = low + stride;
      for (size_t i = 0; i < stride; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  for (float& value : x) value *= scale;
}

}  // namespace mk
