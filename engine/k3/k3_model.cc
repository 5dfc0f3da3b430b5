#include "engine/k3/k3_model.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "engine/k3/forward_pass.h"
#include "engine/parallel/flush_denormals.h"

namespace mk::k3 {
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
  const size_t rows = item.wanted == LogitsWanted::kNone   ? 0
                      : item.wanted == LogitsWanted::kLast ? 1
                                                           : item.tokens.size();
  if (rows > 0 && item.logits.size() != rows * vocab) {
    return Invalid(index,
                   "the logits span has " + std::to_string(item.logits.size()) + " floats, not " +
                       std::to_string(rows * vocab),
                   "pass one row of vocab floats per row wanted");
  }
  return {};
}

Status CheckSequence(size_t index, const ForwardItem& item, const void* owner) {
  // Only K3 models make sequences for K3 models; the owner tells which one.
  const auto* sequence = dynamic_cast<const K3Sequence*>(item.sequence);
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

Status CheckItems(std::span<const ForwardItem> items, const void* owner, size_t vocab) {
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

Status OutOfScratch() {
  return Fail(ErrorCode::kOutOfMemory, "no memory for the scratch of a forward pass",
              "use smaller batches or end other programs");
}

}  // namespace

K3Model::K3Model(ModelInfo info, std::shared_ptr<const K3Shape> shape, K3Weights weights,
                 std::unique_ptr<ExpertStore> experts)
    : info_(std::move(info)),
      shape_(std::move(shape)),
      weights_(std::move(weights)),
      experts_(std::move(experts)) {}

Result<std::unique_ptr<Sequence>> K3Model::NewSequence(const SequenceOptions& options) const {
  if (options.precision != Precision::kExact) {
    return Fail(ErrorCode::kInvalidArgument, "this model serves the precision \"exact\" only",
                "leave the precision out");
  }
  if (options.max_tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument, "a sequence of at most 0 tokens cannot hold anything",
                "raise the context limit");
  }
  try {
    Result<std::unique_ptr<K3Sequence>> sequence = K3Sequence::Create(this, shape_, options);
    if (!sequence) return Fail(sequence.error());
    return std::unique_ptr<Sequence>(std::move(*sequence));
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a new sequence", "end other sequences");
  }
}

Status K3Model::Forward(Executor& executor, std::span<ForwardItem> items,
                        ForwardObserver* observer) const {
  if (items.empty()) return {};
  if (Status good = CheckItems(items, this, shape_->vocab); !good) return good;
  const FlushDenormals flush;
  ScratchArena& scratch = executor.scratch();
  scratch.Reset();
  bool started = false;
  Status done = [&]() -> Status {
    try {
      const std::span<BatchItem> batch_items = scratch.Allocate<BatchItem>(items.size());
      size_t rows = 0;
      for (size_t i = 0; i < items.size(); ++i) {
        auto* sequence = static_cast<K3Sequence*>(items[i].sequence);
        if (Status room = sequence->Reserve(items[i].tokens.size()); !room) return room;
        batch_items[i] = {sequence, rows, items[i].tokens.size(), sequence->length()};
        rows += items[i].tokens.size();
      }
      const Batch batch{executor.pool(), scratch, batch_items, rows, observer};
      ForwardPass pass(*shape_, weights_, *experts_, batch);
      started = true;
      if (Status run = pass.RunLayers(items); !run) return run;
      if (Status run = pass.WriteLogits(items); !run) return run;
      for (const BatchItem& item : batch_items) item.sequence->Advance(item.tokens);
      return {};
    } catch (const std::bad_alloc&) {
      return OutOfScratch();
    }
  }();
  if (!done && started) {
    for (const ForwardItem& item : items) static_cast<K3Sequence*>(item.sequence)->MarkBroken();
  }
  return done;
}

}  // namespace mk::k3
