// What the kernel tests share: every target of this machine, random data, exact-order twins.

#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kernels/target.h"
#include "engine/parallel/flush_denormals.h"

// The targets that the tests force are those that target.cc tells apart.
#define HWY_WANT_AVX3_DL
#include "hwy/targets.h"

namespace mk {

// Calls test() once for every instruction set that is compiled in and that this machine has, with
// the kernels bound to it. Scalar code is one of them on x86; ARM always has NEON and compiles
// none.
template <typename Test>
void ForEachTarget(Test test) {
  const int64_t machine = hwy::SupportedTargets();
  const int64_t targets = machine & HWY_TARGETS;
  std::set<std::string_view> seen;
  for (int64_t rest = targets; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    // The target and all worse ones: AVX3_DL is compiled only where it differs from AVX3.
    hwy::GetChosenTarget().Update(targets & ~(target - 1));
    ASSERT_EQ(KernelTarget(), hwy::TargetName(target));
    SCOPED_TRACE(KernelTarget());
    seen.insert(KernelTarget());
    test();
  }
  hwy::GetChosenTarget().Update(machine);
  ASSERT_EQ(seen.size(), static_cast<size_t>(std::popcount(static_cast<uint64_t>(targets))));
#if HWY_ARCH_X86
  if (machine & HWY_AVX2) {
    ASSERT_TRUE(seen.contains("AVX2"));
  }
  if (machine & HWY_AVX3) {
    ASSERT_TRUE(seen.contains("AVX3"));
  }
  if (machine & HWY_AVX3_DL) {
    ASSERT_TRUE(seen.contains("AVX3_DL"));
  }
#endif
}

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float Normal() { return normal_(engine_); }
  float Uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  uint8_t Byte() { return static_cast<uint8_t>(engine_()); }
  std::vector<float> Normals(size_t count) {
    std::vector<float> v(count);
    for (float& x : v) x = Normal();
    return v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

// Sum of sixteen lanes as the kernels define it.
inline float TreeSum(const float (&lanes)[16]) {
  float lane[16];
  std::memcpy(lane, lanes, sizeof(lane));
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  }
  return lane[0];
}

inline uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline void ExpectSameBits(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(Bits(actual[i]), Bits(expected[i]))
        << "element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

}  // namespace mk
