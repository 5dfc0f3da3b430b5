// DryCompat: the penalty that the reference engine calls DRY. It has little in common with
// DryPenalty, and is here to repeat that engine's runs.
//
// The window w is the last 64 tokens of the answer. For n = 3 .. min(8, |w|), and for every i with
// w[i..i+n-1) equal to the last n-1 tokens of w, the token c = w[i+n-1] that followed loses
// strength * 0.9^(|w| - (n-1) - i), in f32. Nothing when |w| < 3.

#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "engine/sampling/logit_processor.h"

namespace mk {

// Keeps nothing between calls: a token costs some 64 * 6 comparisons at most.
class DryCompat : public LogitProcessor {
 public:
  static constexpr size_t kWindow = 64;
  static constexpr size_t kLongest = 8;

  // `strength`: in (0, 100].
  explicit DryCompat(float strength);

  void Apply(std::span<const int32_t> emitted, std::span<float> logits) override;

 private:
  std::array<float, kWindow + 1> penalties_{};  // strength * 0.9^distance
};

}  // namespace mk
