// Single rows of kQ8 matrices in packed form (packed_matrix.h), as plain bytes and scales and back.

#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/packed_matrix.h"

namespace mk {

// Row `row` of a matrix of `groups` groups of columns: codes [groups][32], scales [groups].
void ReadQ8Codes(const std::byte* panels, size_t groups, size_t row, int8_t* codes);
void ReadQ8Scales(const std::byte* panels, size_t groups, size_t row, float* scales);
// Codes from -127 to 127.
void WriteQ8Codes(const int8_t* codes, size_t groups, size_t row, std::byte* panels);
void WriteQ8Scales(const float* scales, size_t groups, size_t row, std::byte* panels);

}  // namespace mk
