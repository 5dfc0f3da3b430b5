// What is done to logits before a token is selected, as options of a run. A part of RunArgs and of
// RunOptions, beside their own fields. docs/sampling.md has the formulas and the order.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mk::protocol {

// The most alternatives that RunArgs::logprobs may ask for.
inline constexpr uint32_t kMaxLogprobs = 20;

struct TokenBias {
  int32_t id = 0;
  double bias = 0;  // added to the logit
  bool operator==(const TokenBias&) const = default;
};

struct ProcessingOptions {
  std::vector<TokenBias> logit_bias;
  std::vector<int32_t> ban;  // tokens that must not come
  // Penalty on what would go on a repeat.
  double dry_multiplier = 0;  // 0: off
  double dry_base = 1.75;
  uint32_t dry_allowed_length = 2;
  uint32_t dry_range = 1024;                                       // tokens looked back upon
  bool dry_prompt = true;                                          // those of the prompt too
  std::vector<std::string> dry_breakers = {"\n", ":", "\"", "*"};  // a token with such text
  double dry_compat = 0;                                           // of the reference; 0: off
  // Penalties on tokens that have come before.
  double repetition_penalty = 1;  // 1: off
  double frequency_penalty = 0;
  double presence_penalty = 0;
  uint32_t penalty_window = 0;  // tokens looked back upon; 0: all
  bool penalty_prompt = false;  // those of the prompt too
  double typical_p = 1;         // a cut, after the others; 1: off
  bool operator==(const ProcessingOptions&) const = default;
};

// One of the likeliest tokens at a place.
struct Alternative {
  int32_t id = 0;
  std::string text;    // its own, or its name; ill-formed UTF-8 replaced
  double logprob = 0;  // nats
  bool operator==(const Alternative&) const = default;
};

}  // namespace mk::protocol
