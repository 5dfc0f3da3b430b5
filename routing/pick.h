// An expert of a layer, as routers pick it.

#pragma once

#include <compare>
#include <cstdint>

namespace mk::routing {

struct Pick {
  uint32_t layer = 0;
  uint32_t expert = 0;
  auto operator<=>(const Pick&) const = default;
};

// Layers and experts that a file may name: what it claims beyond is damage.
inline constexpr uint32_t kMaxLayers = 4096;
inline constexpr uint32_t kMaxExperts = 1 << 16;
// Of layers times experts: a dozen times those of Kimi K3.
inline constexpr uint64_t kMaxPairs = 1 << 20;

}  // namespace mk::routing
