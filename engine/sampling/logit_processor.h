// LogitProcessor: what changes a row of logits before a token is selected from it: a bias, a
// penalty.

#pragma once

#include <cstdint>
#include <span>

namespace mk {

class LogitProcessor {
 public:
  virtual ~LogitProcessor() = default;
  LogitProcessor(const LogitProcessor&) = delete;
  LogitProcessor& operator=(const LogitProcessor&) = delete;

  // Changes `logits` [vocab] in place. `emitted`: the tokens of this turn so far.
  //
  // A pure function of its options, the context that it was made with and `emitted`: what a
  // processor keeps between calls is there for speed and never shows. Tokens are guessed ahead and
  // taken back, so that `emitted` may be shorter than in the call before, or go on differently from
  // any place. Never writes NaN or +inf over a finite logit.
  virtual void Apply(std::span<const int32_t> emitted, std::span<float> logits) = 0;

 protected:
  LogitProcessor() = default;
};

}  // namespace mk
