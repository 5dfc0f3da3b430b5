// The sampling of a run: from its request to the engine's options, and log-probabilities back.

#pragma once

#include <span>

#include "daemon/model_registry.h"
#include "engine/sampling/sampler.h"
#include "protocol/messages.h"

namespace mk::daemon {

// Settles what the request leaves open, in `args` too: the seed, and `ban_text` as ids of `ban`.
// Looks at every token of the vocabulary where texts are to be found in them. Errors: bad_request
// (out of range, a token outside of the vocabulary, a text that is not one token), not_found (texts
// without a tokenizer).
protocol::Result<SamplingOptions> SettleSampling(protocol::RunArgs& args,
                                                 const LoadedModel& loaded);

// What was in force, with the seed.
void TellSampling(const protocol::RunArgs& args, protocol::RunOptions& options);

// What RunArgs::logprobs asks for of the token that was chosen from `logits`. `tokenizer` may be
// null: then alternatives have no text.
void AddLogProbs(std::span<const float> logits, uint32_t alternatives, const Tokenizer* tokenizer,
                 protocol::TokenChunk& chunk);

}  // namespace mk::daemon
