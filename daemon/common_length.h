// How far two texts or lists of tokens are the same.

#pragma once

#include <algorithm>
#include <cstddef>

namespace mk::daemon {

template <typename A, typename B>
size_t CommonLength(const A& a, const B& b) {
  const auto most = static_cast<ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first -
                             a.begin());
}

}  // namespace mk::daemon
