// What a dimension of a config may be at most, whatever the architecture.

#pragma once

#include <cstdint>

namespace mk {

inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint32_t kMaxWidth = 1u << 20;
inline constexpr uint32_t kMaxVocab = 1u << 24;
inline constexpr uint32_t kMaxExperts = 1u << 16;
inline constexpr uint32_t kMaxHeads = 1u << 12;

}  // namespace mk
