// Which instruction set the kernels run on.

#pragma once

#include <string_view>

namespace mk {

// "AVX3_DL" (AVX-512 with VNNI), "AVX3" (AVX-512), "AVX2", "NEON", or "SCALAR": the code without
// vectors for machines that have none of them, tens of times slower. Bits are the same on all. The
// best one that the machine has, chosen when the first kernel is called.
std::string_view KernelTarget();

// The chosen target has the 512-bit byte dot product VPDPBUSD.
bool HasVnni();

}  // namespace mk
