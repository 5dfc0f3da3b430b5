// The value generator: a counter-based hash, so that any element of any tensor can be made alone,
// in any order, on any machine, with the same bits. No libm function takes part in the values.
//
//   mix(z) = the finaliser of splitmix64,  G = 0x9E3779B97F4A7C15
//   key(name) = mix(FNV1a64(name) + mix(seed + G))
//   h(name, i) = mix(key(name) + (i+1) G)
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mk {

uint64_t Fnv1a64(std::string_view text);
uint64_t MixBits(uint64_t z);

// Stream of hashes of one name under one seed.
class HashStream {
 public:
  HashStream(uint64_t seed, std::string_view name);
  uint64_t At(uint64_t index) const;
  uint64_t key() const { return key_; }

 private:
  uint64_t key_;
};

// Sum of the four 16-bit lanes of x, minus its mean: an integer in [-131070, 131070] with standard
// deviation 65536/sqrt(3), close to a Gaussian cut at 3.46 sigma.
int32_t BellSum(uint64_t x);

// Elements first, first+1, ... of a tensor with the given mean and standard deviation:
// fl32(mean + fl32(S(h(i)) c)), c = fl32(deviation sqrt(3)/65536).
void FillNormal(const HashStream& stream, uint64_t first, float mean, double deviation,
                std::span<float> out);

// Rows [first_row, first_row + rows) of integers [.., cols]: in each `cols` different ones of
// [0, range), all selections and orders equally likely; cols <= range. Entry j of row r is the
// ((h(r cols + j) >> 32) (range - j)) >> 32-th smallest of those that the row does not have yet.
void FillPermutation(const HashStream& stream, uint64_t first_row, uint32_t cols, uint32_t range,
                     std::span<int32_t> out);

// Elements of an even grid of `count` values from `begin` to `end`.
void FillGrid(uint64_t first, uint64_t count, double begin, double end, std::span<float> out);

// A whole MXFP4 blob [rows][cols] of expert matrix `name`, made in coded form. The mean square of
// its values is (gain gamma)^2 / cols; gamma, in [0.75, 1.25), belongs to the expert: it hangs on
// `name` up to and including its last dot.
void FillCodedExpert(uint64_t seed, std::string_view name, uint64_t rows, uint64_t cols,
                     double gain, std::span<std::byte> blob);

}  // namespace mk
