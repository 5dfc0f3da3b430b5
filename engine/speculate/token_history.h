// The tokens that proposers look through: the last ones of a sequence, each once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mk {

// Proposers hold at most so many tokens; of a longer text they see what came last.
inline constexpr size_t kMaxHistory = size_t{1} << 20;

// A guess of what comes next.
struct Draft {
  std::vector<int32_t> tokens;  // in order; empty: no guess
  // Tokens before the draft that occurred before in front of what is proposed.
  size_t match = 0;
};

}  // namespace mk
