// score: the log-likelihood of given texts. docs/scoring.md says what is counted.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/limits.h"
#include "protocol/model_selector.h"
#include "protocol/stream_messages.h"

namespace mk::protocol {

// Either `text`, perhaps after a `context`, or `ids`, perhaps after `context_ids`. What stands
// before is read and not scored.
struct ScoreItem {
  std::optional<std::string> text;
  std::string context;
  std::optional<std::vector<int32_t>> ids;
  std::vector<int32_t> context_ids;
  bool operator==(const ScoreItem&) const = default;
};

struct ScoreArgs {
  ModelSelector model;
  std::vector<ScoreItem> texts;  // each from an empty state, one after the other
  bool plain = false;            // texts without the id that begins one
  bool tokens = true;            // send a ScoreChunk for what was read
  std::string precision = "auto";
  bool chunked_prefill = true;
  StreamWish stream;
  bool stream_fallback = false;  // see RunArgs
  uint64_t timeout_ms = 0;       // 0: none
  std::string priority = "interactive";
  uint32_t window = kDefaultWindow;  // replies that may be unacknowledged
  bool operator==(const ScoreArgs&) const = default;
};

// type "chunk", kind "score": tokens of a text, in order. All lists are of one length.
struct ScoreChunk {
  uint32_t item = 0;   // the place of the text in ScoreArgs::texts
  uint64_t index = 0;  // of the first token, among those of its text that are scored
  std::vector<int32_t> ids;
  std::vector<std::string> pieces;  // text or name; ill-formed UTF-8 replaced
  std::vector<double> logprobs;     // nats
  std::vector<uint32_t> ranks;      // 1: no token was likelier
  bool operator==(const ScoreChunk&) const = default;
};

struct TextScore {
  double logprob = 0;                // sum over the scored tokens, nats
  uint64_t tokens = 0;               // scored
  uint64_t context_tokens = 0;       // read before them
  uint64_t bytes = 0;                // of the text that the scored tokens spell
  uint64_t top1 = 0;                 // scored tokens of rank 1
  uint64_t top5 = 0;                 // of rank 5 or better
  uint64_t unk = 0;                  // tokens that stand for text that the vocabulary cannot spell
  std::optional<double> perplexity;  // exp(-logprob / tokens); none without tokens
  std::optional<double> bits_per_byte;  // -logprob / (ln 2 * bytes); none without bytes
  bool operator==(const TextScore&) const = default;
};

}  // namespace mk::protocol
