// What tells one state of a beginning from another, and where it may be used.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "daemon/common_length.h"
#include "engine/model/model.h"

namespace mk::daemon {

// Arithmetics differ in their states.
struct PrefixKind {
  Precision precision = Precision::kExact;
  bool chunked_prefill = true;
  bool operator==(const PrefixKind&) const = default;
};

// A shorter prompt is read again sooner than it is cut in two for what may follow it, fetched from
// disk, or waited for.
inline constexpr size_t kShortestPrefix = 2 * kPrefillBlock;

// Whether a state after the first `length` tokens of a prompt is the one that reading the first
// `prompt_length` tokens comes by: it does not lie inside a block that would be read as a whole.
// `block`: 1, or ModelInfo::prompt_block with chunked prefill.
inline bool Usable(size_t length, size_t prompt_length, size_t block) {
  return length <= prompt_length &&
         (length % block == 0 || length / block == prompt_length / block);
}

// Whether a run of `prompt` may go on from the state after `tokens`. A whole prompt needs the
// logits at its end.
inline bool BeginsPrompt(std::span<const int32_t> tokens, bool has_logits,
                         std::span<const int32_t> prompt, size_t block) {
  return tokens.size() <= prompt.size() && (tokens.size() < prompt.size() || has_logits) &&
         Usable(tokens.size(), prompt.size(), block) &&
         CommonLength(tokens, prompt) == tokens.size();
}

}  // namespace mk::daemon
