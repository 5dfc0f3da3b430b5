// What codebooks are trained on: a random sample of groups of sixteen weights.
//
// Generator: splitmix64. Sample: algorithm R; the same offers give the same sample on every
// machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mk {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

class VectorSample {
 public:
  VectorSample(size_t capacity, uint64_t seed) : capacity_(capacity), random_(seed) {}

  // Offers the groups of [n][16] values, one after the other.
  void Offer(std::span<const float> values);
  // [n][16], n at most the capacity.
  std::span<const float> values() const { return values_; }

 private:
  const size_t capacity_;
  SplitMix64 random_;
  uint64_t offered_ = 0;
  std::vector<float> values_;
};

}  // namespace mk
