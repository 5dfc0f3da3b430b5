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

Result<std::unique_ptr<Sequence>> K3Model::NewSequence(const SequenceOptions& options) const {
  if (!prepared(options.precision)) {
    return Fail(ErrorCode::kInvalidArgument,
                "this model is not loaded in the precision " +
                    std::string(PrecisionName(options.precision)),
                "prepare the precision before a sequence of it is made");
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

Status K3Model::ForwardGroup(Executor& executor, Precision precision, std::span<ForwardItem> items,
                             std::span<const size_t> indices, ForwardObserver* observer) const {
  ScratchArena& scratch = executor.scratch();
  const std::span<BatchItem> batch_items = scratch.Allocate<BatchItem>(items.size());
  size_t rows = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    auto* sequence = static_cast<K3Sequence*>(items[i].sequence);
    batch_items[i] = {indices[i], sequence, rows, items[i].tokens.size(), sequence->length()};
    rows += items[i].tokens.size();
  }
  const Batch batch{executor.pool(), scratch, batch_items, rows, observer, precision};
  ForwardPass pass(*shape_, *Weights(precision), tables_.embedding, *experts_, batch);
  if (Status run = pass.RunLayers(items); !run) return run;
  if (Status run = pass.WriteLogits(items); !run) return run;
  for (const BatchItem& item : batch_items) item.sequence->Advance(item.tokens);
  return {};
}

// One pass for every precision among the items.
Status K3Model::ForwardAll(Executor& executor, std::span<ForwardItem> items,
                           ForwardObserver* observer) const {
  ScratchArena& scratch = executor.scratch();
  const std::span<ForwardItem> group = scratch.Allocate<ForwardItem>(items.size());
  const std::span<size_t> indices = scratch.Allocate<size_t>(items.size());
  for (size_t p = 0; p < kPrecisions; ++p) {
    const auto precision = static_cast<Precision>(p);
    size_t count = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const auto* sequence = static_cast<const K3Sequence*>(items[i].sequence);
      if (sequence->options().precision != precision) continue;
      group[count] = items[i];
      indices[count++] = i;
    }
    if (count == 0) continue;
    Status done =
        ForwardGroup(executor, precision, group.first(count), indices.first(count), observer);
    if (!done) return done;
  }
  return {};
}

Status K3Model::Forward(Executor& executor, std::span<ForwardItem> items,
                        ForwardObserver* observer) const {
  if (items.empty()) return {};
  if (Status good = CheckItems(items, this, shape_->vocab); !good) return good;
  const FlushDenormals flush;
  executor.scratch().Reset();
  bool started = false;
  Status done = [&]() -> Status {
    try {
      for (const ForwardItem& item : items) {
        auto* sequence = static_cast<K3Sequence*>(item.sequence);
        if (Status room = sequence->Reserve(item.tokens.size()); !room) return room;
      }
      started = true;
      return ForwardAll(executor, items, observer);
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
