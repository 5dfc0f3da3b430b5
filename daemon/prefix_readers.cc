#include "daemon/prefix_readers.h"

#include <algorithm>
#include <functional>

namespace mk::daemon {
namespace {

// The last place in what two prompts share where a state of the first is of use to the second: the
// end of both, with the logits there, or the end of a block.
size_t LastPlace(std::span<const int32_t> first, std::span<const int32_t> second) {
  const size_t common = CommonLength(first, second);
  if (common == first.size() && common == second.size()) return common;
  return std::min(common, second.size() - 1) / kPrefillBlock * kPrefillBlock;
}

}  // namespace

PrefixWait PrefixReaders::FindWorthWaiting(const PrefixKind& kind, std::span<const int32_t> prompt,
                                           size_t known) const {
  PrefixWait best;
  best.until = known + kShortestPrefix - 1;
  for (const auto& reading : readings_) {
    if (reading->task == nullptr || reading->kind != kind) continue;
    const size_t place = LastPlace(reading->prompt, prompt);
    if (place > reading->position && place > best.until) best = {reading, place};
  }
  if (!best.reading) return {};
  std::vector<size_t>& marks = *best.reading->marks;
  const auto at = std::lower_bound(marks.begin(), marks.end(), best.until, std::greater<>());
  if (at == marks.end() || *at != best.until) marks.insert(at, best.until);
  return best;
}

}  // namespace mk::daemon
