// Small float formats by their tables of values, and the transforms beside them: oracles of the
// engine's roundings.

#pragma once

#include <cstddef>
#include <vector>

namespace mk::reference {

// The values of a format from zero up; the index is the code without the sign.
const std::vector<double>& E4m3Levels();  // 127 of them, up to 448
const std::vector<double>& E2m1Levels();  // 0 to 6

// The nearest level, of two equally near ones that of the even code. `margin` is lowered to the
// distance from the boundary between them, in parts of the last level.
double NearestLevel(const std::vector<double>& levels, double value, double& margin);

// The scale of a block: the exponent of the least power of two that times the last level is not
// below `largest`.
int BlockExponent(const std::vector<double>& levels, double largest);

// Rounds values [begin, end) of x with one scale, made from the largest of them or `least`.
void RoundBlock(const std::vector<double>& levels, double least, std::vector<double>& x,
                size_t begin, size_t end, double& margin);

// H x / sqrt(n) with Sylvester's matrix.
std::vector<double> HadamardProduct(const std::vector<double>& x);

}  // namespace mk::reference
