// DryPenalty: "don't repeat yourself", which makes a text that has begun to repeat itself go on
// differently (p-e-w, 2024: github.com/oobabooga/text-generation-webui/pull/5677).
//
// The window w is the last `range` tokens of prompt and answer. For every place i before its end,
// n_i is the number of tokens up to and including w[i] that are equal to those at the end of w; the
// count stops at a breaker. Let n be the largest n_i over the places that are followed by a token
// c. When n >= allowed_length:
//
//   l_c -= multiplier * base^(n - allowed_length)
//
// Breakers themselves are never penalised, so that the ends of lines and turns may come again.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling/logit_processor.h"

namespace mk {

struct DryOptions {
  float multiplier = 0.0f;      // [0, 100]; 0 = off
  float base = 1.75f;           // [1, 10]
  uint32_t allowed_length = 2;  // [1, 1024]: repeats shorter than that cost nothing
  uint32_t range = 1024;        // [1, 65536] tokens looked back upon
  bool prompt = true;           // tokens of the prompt are looked at too
  // [vocab]: whether a token ends what counts as one repeat; null: no token does.
  std::shared_ptr<const std::vector<bool>> breakers;

  bool any() const { return multiplier != 0.0f; }
};

// Keeps nothing between calls: the lengths of all repeats come out of one pass over the window, so
// that a token costs `range` steps at most, whatever the text.
class DryPenalty : public LogitProcessor {
 public:
  // `prompt`: what stands before the emitted tokens; looked at only when options.prompt is set.
  DryPenalty(const DryOptions& options, std::span<const int32_t> prompt);

  void Apply(std::span<const int32_t> emitted, std::span<float> logits) override;

 private:
  bool Breaks(int32_t id) const;
  void FillWindow(std::span<const int32_t> emitted);
  void FindRepeats();

  DryOptions options_;
  std::vector<int32_t> prompt_;   // its last `range` tokens
  std::vector<int32_t> window_;   // backwards: the last token first
  std::vector<size_t> repeated_;  // [window]: tokens from here on that are equal to its beginning
  std::unordered_map<int32_t, size_t> longest_;  // n of every token that followed a repeat
};

}  // namespace mk
