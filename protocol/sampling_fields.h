// The fields of sampling_messages.h.

#pragma once

#include "protocol/field.h"
#include "protocol/sampling_messages.h"

namespace mk::protocol {

template <>
struct Schema<TokenBias> {
  static constexpr auto fields = std::make_tuple(
      Required("id", &TokenBias::id, "token", Rule{}.Range(0, (1u << 31) - 1.0)),
      Required("bias", &TokenBias::bias, "what is added to its logit", Rule{}.Range(-100, 100)));
};

template <>
struct Schema<ProcessingOptions> {
  using Own = ProcessingOptions;
  static constexpr auto fields = std::make_tuple(
      Optional("logit_bias", &Own::logit_bias, "what is added to the logits of tokens",
               Rule{}.Items(1024)),
      Optional("ban", &Own::ban, "ids of tokens that must not come",
               Rule{}.Range(0, (1u << 31) - 1.0).Items(1024)),
      Optional("dry_multiplier", &Own::dry_multiplier,
               "strength of the penalty on what goes on a repeat; 0: none", Rule{}.Range(0, 100)),
      Optional("dry_base", &Own::dry_base, "how fast it grows with the length of the repeat",
               Rule{}.Range(1, 10)),
      Optional("dry_allowed_length", &Own::dry_allowed_length,
               "tokens from which on a repeat is penalised", Rule{}.Range(1, 1024)),
      Optional("dry_range", &Own::dry_range, "tokens that repeats are looked for in",
               Rule{}.Range(1, 65536)),
      Optional("dry_prompt", &Own::dry_prompt, "look for repeats of the prompt too"),
      Optional("dry_breakers", &Own::dry_breakers, "texts whose tokens end what is one repeat",
               Rule{}.NotEmpty().Bytes(64).Items(32)),
      Optional("dry_compat", &Own::dry_compat,
               "strength of the penalty of this name of the reference engine; 0: none",
               Rule{}.Range(0, 100)),
      Optional("repetition_penalty", &Own::repetition_penalty,
               "logits of tokens that came before are divided by it, or multiplied below 0; 1: off",
               Rule{}.Range(0.1, 10)),
      Optional("frequency_penalty", &Own::frequency_penalty,
               "taken off a token's logit for every time that it came before", Rule{}.Range(-2, 2)),
      Optional("presence_penalty", &Own::presence_penalty,
               "taken off the logits of tokens that came before", Rule{}.Range(-2, 2)),
      Optional("penalty_window", &Own::penalty_window,
               "tokens that the three penalties look back upon; 0: all", Rule{}.Range(0, 1 << 20)),
      Optional("penalty_prompt", &Own::penalty_prompt, "let tokens of the prompt count too"),
      Optional("typical_p", &Own::typical_p,
               "sample from the tokens of most typical probability that have this share; 1: all",
               Rule{}.Above(0, 1)));
};

template <>
struct Schema<Alternative> {
  static constexpr auto fields =
      std::make_tuple(Required("id", &Alternative::id), Required("text", &Alternative::text),
                      Required("logprob", &Alternative::logprob));
};

}  // namespace mk::protocol
