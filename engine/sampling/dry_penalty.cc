#include "engine/sampling/dry_penalty.h"

#include <algorithm>
#include <cmath>

namespace mk {
namespace {

// Far below any logit, and still finite, so that a row never has nothing left to choose from.
constexpr double kLargestPenalty = 1e30;

}  // namespace

DryPenalty::DryPenalty(const DryOptions& options, std::span<const int32_t> prompt)
    : options_(options) {
  if (!options_.prompt) return;
  prompt = prompt.last(std::min<size_t>(prompt.size(), options_.range));
  prompt_.assign(prompt.begin(), prompt.end());
}

// Tokens that nobody knows are equal to none, not even to one another.
bool DryPenalty::Breaks(int32_t id) const {
  if (id < 0) return true;
  const auto at = static_cast<size_t>(id);
  return options_.breakers && at < options_.breakers->size() && (*options_.breakers)[at];
}

void DryPenalty::FillWindow(std::span<const int32_t> emitted) {
  const size_t of_emitted = std::min<size_t>(emitted.size(), options_.range);
  const size_t of_prompt = std::min(prompt_.size(), options_.range - of_emitted);
  window_.clear();
  const auto last = emitted.last(of_emitted);
  window_.insert(window_.end(), last.rbegin(), last.rend());
  window_.insert(window_.end(), prompt_.rbegin(),
                 prompt_.rbegin() + static_cast<ptrdiff_t>(of_prompt));
}

// The Z-algorithm (Gusfield, "Algorithms on strings, trees and sequences", 1.4), on the window read
// backwards: repeated_[i] is the length of the longest common beginning of the window and of its
// part from i on. No repeat is longer than the tokens before the first breaker.
void DryPenalty::FindRepeats() {
  const auto breaker =
      std::find_if(window_.begin(), window_.end(), [&](int32_t id) { return Breaks(id); });
  const auto most = static_cast<size_t>(breaker - window_.begin());
  repeated_.assign(window_.size(), 0);
  size_t left = 0;
  size_t right = 0;  // [left, right) is equal to the beginning, and reaches furthest
  for (size_t i = 1; i < window_.size() && most > 0; ++i) {
    size_t length = i < right ? std::min(right - i, repeated_[i - left]) : 0;
    while (length < most && i + length < window_.size() && window_[length] == window_[i + length]) {
      ++length;
    }
    repeated_[i] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}

void DryPenalty::Apply(std::span<const int32_t> emitted, std::span<float> logits) {
  FillWindow(emitted);
  FindRepeats();
  longest_.clear();
  for (size_t i = 1; i < window_.size(); ++i) {
    const int32_t next = window_[i - 1];  // backwards: what followed the repeat
    if (repeated_[i] < options_.allowed_length || Breaks(next)) continue;
    if (static_cast<size_t>(next) >= logits.size()) continue;
    size_t& longest = longest_.try_emplace(next, 0).first->second;
    longest = std::max(longest, repeated_[i]);
  }
  for (const auto& [id, length] : longest_) {
    const double exponent = static_cast<double>(length - options_.allowed_length);
    const double penalty =
        static_cast<double>(options_.multiplier) * std::pow(double{options_.base}, exponent);
    logits[static_cast<size_t>(id)] -= static_cast<float>(std::min(penalty, kLargestPenalty));
  }
}

}  // namespace mk
