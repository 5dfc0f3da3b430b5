#include "engine/arch/forward_checks.h"

#include <algorithm>
#include <string>

#include "engine/arch/model_sequence.h"

namespace mk {
namespace {

Status Invalid(size_t item, const std::string& problem, const std::string& hint) {
  return Fail(ErrorCode::kInvalidArgument, "item " + std::to_string(item) + ": " + problem, hint);
}

Status CheckTokens(size_t index, const ForwardItem& item, size_t vocab) {
  if (item.tokens.empty()) return Invalid(index, "no tokens", "pass at least one token");
  for (const int32_t token : item.tokens) {
    if (token >= 0 && static_cast<size_t>(token) < vocab) continue;
    return Invalid(index, "token id " + std::to_string(token) + " is outside the vocabulary",
                   "ids go from 0 to " + std::to_string(vocab - 1));
  }
  if (item.draft && item.tokens.size() > kMaxDraftTokens) {
    return Invalid(index, std::to_string(item.tokens.size()) + " tokens are too many for a draft",
                   "guess at most " + std::to_string(kMaxDraftTokens) + " tokens at a time");
  }
  const size_t rows = LogitRows(item);
  if (rows > 0 && item.logits.size() != rows * vocab) {
    return Invalid(index,
                   "the logits span has " + std::to_string(item.logits.size()) + " floats, not " +
                       std::to_string(rows * vocab),
                   "pass one row of vocab floats per row wanted");
  }
  return {};
}

Status CheckSequence(size_t index, const ForwardItem& item, const void* owner) {
  const auto* sequence = dynamic_cast<const ModelSequence*>(item.sequence);
  if (sequence == nullptr || sequence->owner() != owner) {
    return Invalid(index, "the sequence belongs to another model",
                   "make it with NewSequence of this model");
  }
  if (sequence->broken()) {
    return Invalid(index, "the sequence was left unusable by an earlier error",
                   "start a new sequence");
  }
  const size_t limit = sequence->options().max_tokens;
  if (item.tokens.size() > limit - std::min(limit, sequence->length())) {
    return Fail(ErrorCode::kContextOverflow,
                std::to_string(sequence->length()) + " tokens and " +
                    std::to_string(item.tokens.size()) + " more exceed the limit of " +
                    std::to_string(limit),
                "shorten the prompt or raise the context limit");
  }
  return {};
}

}  // namespace

size_t LogitRows(const ForwardItem& item) {
  switch (item.wanted) {
    case LogitsWanted::kNone:
      return 0;
    case LogitsWanted::kLast:
      return 1;
    case LogitsWanted::kAll:
      break;
  }
  return item.tokens.size();
}

Status CheckForwardItems(std::span<const ForwardItem> items, const void* owner, size_t vocab) {
  size_t tokens = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (Status good = CheckTokens(i, items[i], vocab); !good) return good;
    if (Status good = CheckSequence(i, items[i], owner); !good) return good;
    tokens += items[i].tokens.size();
    if (tokens > kMaxForwardTokens) {
      return Fail(ErrorCode::kInvalidArgument,
                  "more than " + std::to_string(kMaxForwardTokens) + " tokens in one forward pass",
                  "cut the prompt into segments");
    }
    for (size_t j = 0; j < i; ++j) {
      if (items[j].sequence != items[i].sequence) continue;
      return Invalid(i, "the sequence is in the batch twice", "pass every sequence once");
    }
  }
  return {};
}

}  // namespace mk
