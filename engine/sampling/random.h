// Random numbers addressed by index: the n-th uniform of a seed, whenever it is asked for.

#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/base/result.h"

namespace mk {

enum class RandomProfile {
  kPhilox,   // Philox4x32-10, counter = index, key = seed
  kCompat1,  // xorshift64* with state seed | 1, for comparisons with recorded runs
};

// "philox" or "compat-1". Errors: kInvalidArgument.
Result<RandomProfile> ParseRandomProfile(std::string_view name);
std::string_view RandomProfileName(RandomProfile profile);

// Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
// 1, 2, 3", 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// s ^= s >> 12; s ^= s << 25; s ^= s >> 27; the output is s * 0x2545F4914F6CDD1D.
class XorShift64Star {
 public:
  explicit XorShift64Star(uint64_t seed) : state_(seed | 1) {}
  uint64_t Next();

 private:
  uint64_t state_;
};

// One thread at a time.
class Random {
 public:
  Random(RandomProfile profile, uint64_t seed) : profile_(profile), seed_(seed), xorshift_(seed) {}

  // The uniform of an index, in [0, 1), a multiple of 2^-53. kCompat1 steps through the indices:
  // ascending calls are cheap, a smaller index than before starts over.
  double Uniform(uint64_t index);

 private:
  RandomProfile profile_;
  uint64_t seed_;
  XorShift64Star xorshift_;
  uint64_t next_ = 0;  // index that xorshift_ gives next
};

}  // namespace mk
