#include "engine/generate/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace mk {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopMatcher::Push(std::string_view text) {
  if (matched_) return {};
  std::string buffer = std::exchange(held_, {});
  buffer.append(text);
  size_t match_end = std::string::npos;
  size_t match_begin = 0;
  for (size_t s = 0; s < stops_.size(); ++s) {
    const size_t found = stops_[s].empty() ? std::string::npos : buffer.find(stops_[s]);
    if (found == std::string::npos) continue;
    const size_t end = found + stops_[s].size();
    if (end < match_end || (end == match_end && found < match_begin)) {
      match_end = end;
      match_begin = found;
      matched_ = s;
    }
  }
  if (matched_) return buffer.substr(0, match_begin);
  size_t hold = 0;  // bytes at the end that begin some stop string
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    for (size_t n = std::min(stop.size() - 1, buffer.size()); n > hold; --n) {
      if (std::string_view(buffer).substr(buffer.size() - n) == stop.substr(0, n)) hold = n;
    }
  }
  held_ = buffer.substr(buffer.size() - hold);
  buffer.resize(buffer.size() - hold);
  return buffer;
}

std::string StopMatcher::Flush() {
  return std::exchange(held_, {});
}

}  // namespace mk
