// LogitBias: what a caller adds to the logits of tokens that it names, and tokens that must not
// come.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/logit_processor.h"

namespace mk {

struct TokenBias {
  int32_t id = 0;
  float bias = 0.0f;
};

// l_id += bias for every entry, in their order; then l_id = -inf for every banned id.
class LogitBias : public LogitProcessor {
 public:
  // All ids must be in the vocabulary.
  LogitBias(std::vector<TokenBias> biases, std::vector<int32_t> banned);

  void Apply(std::span<const int32_t> emitted, std::span<float> logits) override;

 private:
  std::vector<TokenBias> biases_;
  std::vector<int32_t> banned_;
};

}  // namespace mk
