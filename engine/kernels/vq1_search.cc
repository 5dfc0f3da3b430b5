#include "engine/kernels/vq1_search.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/vq1_search.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kGroup = 16;
constexpr size_t kEntries = 256;
// Register tiles: groups of values by vectors of sixteen entries.
constexpr size_t kTileGroups = kV16Parts == 1 ? 4 : 1;
constexpr size_t kTileVectors = 4 / (kV16Parts < 4 ? kV16Parts : 4);

// Of every lane the smallest distance so far, and at which vector of entries it was first seen.
struct Best {
  HWY_INLINE Best() {}
  V16 distance;
  V16 at;
};

HWY_INLINE void Improve(const V16& distance, float at, Best& best) {
  for (size_t i = 0; i < kV16Parts; ++i) {
    const auto nearer = hn::Lt(distance.part[i], best.distance.part[i]);
    best.distance.part[i] = hn::IfThenElse(nearer, distance.part[i], best.distance.part[i]);
    best.at.part[i] = hn::IfThenElse(nearer, hn::Set(DF(), at), best.at.part[i]);
  }
}

// The nearest of all lanes, the lowest entry among equals.
HWY_INLINE void Choose(const Best& best, uint8_t& index, float& distance) {
  alignas(64) float distances[16];
  alignas(64) float at[16];
  Store16(best.distance, distances);
  Store16(best.at, at);
  const auto entry = [&](size_t lane) { return static_cast<size_t>(at[lane]) + lane; };
  size_t chosen = 0;
  for (size_t lane = 1; lane < 16; ++lane) {
    const bool nearer = distances[lane] < distances[chosen];
    const bool equal = distances[lane] == distances[chosen];
    if (nearer || (equal && entry(lane) < entry(chosen))) chosen = lane;
  }
  index = static_cast<uint8_t>(entry(chosen));
  distance = distances[chosen];
}

template <size_t G>
HWY_INLINE void SearchGroups(const float* columns, const float* values, uint8_t* indices,
                             float* distances) {
  Best best[G];
  for (size_t g = 0; g < G; ++g) {
    best[g].distance = Set16(HUGE_VALF);
    best[g].at = Zero16();
  }
  for (size_t k = 0; k < kEntries; k += 16 * kTileVectors) {
    V16 sum[G][kTileVectors];
    for (size_t g = 0; g < G; ++g) {
      for (size_t v = 0; v < kTileVectors; ++v) sum[g][v] = Zero16();
    }
    for (size_t j = 0; j < kGroup; ++j) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        const V16 column = LoadAligned16(columns + j * kEntries + k + 16 * v);
        for (size_t g = 0; g < G; ++g) {
          const V16 difference = Sub16(Set16(values[g * kGroup + j]), column);
          sum[g][v] = Add16(sum[g][v], Mul16(difference, difference));
        }
      }
    }
    for (size_t g = 0; g < G; ++g) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        Improve(sum[g][v], static_cast<float>(k + 16 * v), best[g]);
      }
    }
  }
  for (size_t g = 0; g < G; ++g) {
    float distance = 0;
    Choose(best[g], indices[g], distance);
    if (distances != nullptr) distances[g] = distance;
  }
}

}  // namespace

void Search(const float* codebook, const float* values, size_t count, uint8_t* indices,
            float* distances) {
  const float* columns = codebook + kEntries * kGroup;
  const auto at = [&](size_t i) { return distances == nullptr ? nullptr : distances + i; };
  size_t i = 0;
  for (; i + kTileGroups <= count; i += kTileGroups) {
    SearchGroups<kTileGroups>(columns, values + i * kGroup, indices + i, at(i));
  }
  for (; i < count; ++i) SearchGroups<1>(columns, values + i * kGroup, indices + i, at(i));
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Search);

void FindNearestVq1(const float* codebook, const float* values, size_t count, uint8_t* indices,
                    float* distances) {
  HWY_DYNAMIC_DISPATCH(Search)(codebook, values, count, indices, distances);
}

}  // namespace mk
#endif  // HWY_ONCE
