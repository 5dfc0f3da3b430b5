// What is done to a row of logits before a token is selected, as options: the processors of a
// request, in the order in which they run:
//
//   bias and bans, DRY (then DRY of the reference engine), repetition, frequency and presence

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/sampling/dry_penalty.h"
#include "engine/sampling/logit_bias.h"
#include "engine/sampling/logit_processor.h"
#include "engine/sampling/token_penalties.h"

namespace mk {

inline constexpr size_t kMaxBiases = 1024;
inline constexpr size_t kMaxBanned = 1024;

struct ProcessingOptions {
  std::vector<TokenBias> biases;  // at most kMaxBiases, each in [-100, 100]
  std::vector<int32_t> banned;    // at most kMaxBanned
  DryOptions dry;
  float dry_compat = 0.0f;  // [0, 100]; 0 = off
  PenaltyOptions penalties;
};

// kInvalidArgument for the first option out of its range, naming it and the range.
Status ValidateProcessing(const ProcessingOptions& options);
// kInvalidArgument for a token outside of a vocabulary of so many, and when all of them are banned.
Status ValidateTokens(const ProcessingOptions& options, size_t vocab);

// Those that have something to do, in their order. `prompt`: what stands before the first emitted
// token. The options must have passed both checks.
std::vector<std::unique_ptr<LogitProcessor>> MakeProcessors(const ProcessingOptions& options,
                                                            std::span<const int32_t> prompt);

}  // namespace mk
