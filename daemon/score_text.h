// What of a text is scored: from the item of a request to tokens.

#pragma once

#include <cstdint>
#include <vector>

#include "daemon/model_registry.h"
#include "protocol/messages.h"

namespace mk::daemon {

struct ScoredText {
  std::vector<int32_t> tokens;  // all that is read, what stands before the text included
  size_t first = 0;             // of the tokens that are scored; tokens.size(): none are
  uint64_t bytes = 0;           // of the text that they spell
  uint64_t unknown = 0;         // tokens that stand for text that the vocabulary cannot spell
};

// Context and text are encoded as one, behind the beginning-of-text id where the vocabulary has
// one, unless the request is plain. The first scored token is the first whose bytes go beyond the
// context, so that a token across the border belongs to the text; of what the vocabulary cannot
// spell, the first token that the context alone would not have there. The very first token is never
// scored: nothing comes before it. Errors: bad_request (an id outside of the vocabulary),
// not_found (text without a tokenizer).
protocol::Result<ScoredText> EncodeScored(const LoadedModel& loaded, protocol::ScoreItem item,
                                          bool plain);

}  // namespace mk::daemon
