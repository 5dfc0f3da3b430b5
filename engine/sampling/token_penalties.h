// TokenPenalties: tokens that came already come less often. With c the number of times that a token
// stands in the window, for every token with c > 0, in this order:
//
//   repetition  l > 0: l / repetition; else l * repetition   (Keskar et al. 2019, "CTRL", 4.1; with
//               the sign of l looked at, as is usual since: the paper's division alone would make
//               tokens of negative logit likelier)
//   frequency   l - frequency * c                            (OpenAI's API, as presence)
//   presence    l - presence
//
// The window: the last tokens that were emitted, and before them those of the prompt when they
// count too.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling/logit_processor.h"

namespace mk {

struct PenaltyOptions {
  float repetition = 1.0f;  // [0.1, 10]; 1 = off
  float frequency = 0.0f;   // [-2, 2]; 0 = off
  float presence = 0.0f;    // [-2, 2]; 0 = off
  uint32_t window = 0;      // tokens looked back upon; 0 = all
  bool prompt = false;      // tokens of the prompt count too

  bool any() const { return repetition != 1.0f || frequency != 0.0f || presence != 0.0f; }
};

class TokenPenalties : public LogitProcessor {
 public:
  // `prompt`: what stands before the emitted tokens; looked at only when options.prompt is set.
  TokenPenalties(const PenaltyOptions& options, std::span<const int32_t> prompt);

  // Counts change by the tokens that are new since the last call, and by those taken back. Costs
  // the distinct tokens of the window.
  void Apply(std::span<const int32_t> emitted, std::span<float> logits) override;

 private:
  void Follow(std::span<const int32_t> emitted);
  void Push(int32_t id);
  void Pop();
  void Count(int32_t id, int change);

  PenaltyOptions options_;
  size_t fixed_ = 0;             // tokens of the prompt in tokens_
  std::vector<int32_t> tokens_;  // what is counted, and what has left the window
  std::unordered_map<int32_t, int32_t> counts_;
};

}  // namespace mk
