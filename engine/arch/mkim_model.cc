#include "engine/arch/mkim_model.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "engine/arch/forward_checks.h"
#include "engine/model/executor.h"
#include "engine/parallel/flush_denormals.h"
#include "engine/stream/hot_set.h"

namespace mk {

Status MkimModel::CheckPrepared(Precision precision) const {
  if (prepared(precision)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "this model is not loaded in the precision " + std::string(PrecisionName(precision)),
              "prepare the precision first");
}

MkimModel::~MkimModel() {
  if (streamed_ == nullptr || hot_set_path_.empty()) return;
  std::vector<ExpertKey> keys = streamed_->Hot();
  if (keys.empty()) return;
  // Nobody is left to be told that it failed, and nothing but time is lost.
  (void)WriteHotSet(hot_set_path_,
                    {info_.fingerprint, static_cast<uint32_t>(expert_shape_.in_layer.size()),
                     static_cast<uint32_t>(expert_shape_.experts), std::move(keys)});
}

// Brings back what was in memory when the model was left.
void MkimModel::RestoreHotSet(const std::string& folder) {
  if (streamed_ == nullptr || folder.empty()) return;
  hot_set_path_ = HotSetPath(folder, info_.fingerprint);
  const Result<HotSet> set = ReadHotSet(hot_set_path_);
  if (!set || set->fingerprint != info_.fingerprint ||
      set->layers != expert_shape_.in_layer.size() || set->experts != expert_shape_.experts) {
    return;
  }
  streamed_->Warm(set->keys);
}

std::optional<StreamStats> MkimModel::stream_stats() const {
  if (streamed_ == nullptr) return std::nullopt;
  return streamed_->Stats();
}

Status MkimModel::SetStreamBudget(uint64_t bytes) const {
  return streamed_ == nullptr ? Model::SetStreamBudget(bytes) : streamed_->SetBudget(bytes);
}

Result<std::unique_ptr<Sequence>> MkimModel::NewSequence(const SequenceOptions& options) const {
  if (Status ready = CheckPrepared(options.precision); !ready) return Fail(ready.error());
  if (options.max_tokens == 0) {
    return Fail(ErrorCode::kInvalidArgument, "a sequence of at most 0 tokens cannot hold anything",
                "raise the context limit");
  }
  try {
    Result<std::unique_ptr<ModelSequence>> sequence = MakeSequence(options);
    if (!sequence) return Fail(sequence.error());
    return std::unique_ptr<Sequence>(std::move(*sequence));
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for a new sequence", "end other sequences");
  }
}

Result<TokenWork> MkimModel::ExpertWork() const {
  TokenWork work;
  for (size_t l = 0; l < expert_shape_.in_layer.size(); ++l) {
    if (!expert_shape_.in_layer[l]) continue;
    Result<ExpertArena> arena = PlanExpertArena(*file_, expert_shape_, l);
    if (!arena) return Fail(arena.error());
    work.all_expert_bytes += arena->bytes;
    // The experts of a layer may be stored in different forms: their mean.
    work.expert_bytes += arena->bytes / expert_shape_.experts * info_.top_k;
    work.multiply_adds += 3 * uint64_t{info_.top_k} * expert_shape_.inner * expert_shape_.width;
  }
  return work;
}

TokenWork MkimModel::TotalWork(const SpineWeights& weights, const TokenWork& of_experts) const {
  TokenWork work = CountWork(weights);
  work.all_expert_bytes = of_experts.all_expert_bytes;
  work.expert_bytes = of_experts.expert_bytes;
  work.multiply_adds += of_experts.multiply_adds;
  work.state_bytes = info_.state_bytes;
  return work;
}

Result<TokenWork> MkimModel::Work(Precision precision) const {
  if (Status ready = CheckPrepared(precision); !ready) return Fail(ready.error());
  Result<TokenWork> of_experts = ExpertWork();
  if (!of_experts) return Fail(of_experts.error());
  return TotalWork(*Weights(precision), *of_experts);
}

// One pass for every precision and access to experts among the items.
Status MkimModel::RunGroups(Executor& executor, std::span<ForwardItem> items,
                            ForwardObserver* observer) const {
  for (size_t p = 0; p < kPrecisions; ++p) {
    for (const ExpertAccess access : {ExpertAccess::kWait, ExpertAccess::kShadow}) {
      Status done = RunGroup(executor, items, static_cast<Precision>(p), access, observer);
      if (!done) return done;
    }
  }
  return {};
}

// A pass over those of the items that are of this kind, if there are any.
Status MkimModel::RunGroup(Executor& executor, std::span<ForwardItem> items, Precision precision,
                           ExpertAccess experts, ForwardObserver* observer) const {
  const auto belongs = [&](const ForwardItem& item) {
    const auto* sequence = static_cast<const ModelSequence*>(item.sequence);
    return sequence->options().precision == precision && item.experts == experts;
  };
  if (std::none_of(items.begin(), items.end(), belongs)) return {};
  ScratchArena& scratch = executor.scratch();
  const std::span<ForwardItem> group = scratch.Allocate<ForwardItem>(items.size());
  const std::span<size_t> indices = scratch.Allocate<size_t>(items.size());
  size_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!belongs(items[i])) continue;
    group[count] = items[i];
    group[count].shadowed = 0;
    indices[count++] = i;
  }
  Status done = Run({executor, precision, *Weights(precision), group.first(count),
                     indices.first(count), observer, experts});
  if (!done) return done;
  for (size_t i = 0; i < count; ++i) {
    static_cast<ModelSequence*>(group[i].sequence)->Advance(group[i].tokens.size());
    items[indices[i]].shadowed = group[i].shadowed;
  }
  return {};
}

Status MkimModel::Forward(Executor& executor, std::span<ForwardItem> items,
                          ForwardObserver* observer) const {
  if (items.empty()) return {};
  if (Status good = CheckForwardItems(items, this, info_.vocab); !good) return good;
  const FlushDenormals flush;
  executor.scratch().Reset();
  bool started = false;
  Status done = [&]() -> Status {
    try {
      for (const ForwardItem& item : items) {
        auto* sequence = static_cast<ModelSequence*>(item.sequence);
        if (Status room = sequence->Reserve(item.tokens.size(), item.draft); !room) return room;
      }
      started = true;
      for (const ForwardItem& item : items) {
        static_cast<ModelSequence*>(item.sequence)->Begin(item.tokens.size(), item.draft);
      }
      return RunGroups(executor, items, observer);
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kOutOfMemory, "no memory for the scratch of a forward pass",
                  "use smaller batches or end other programs");
    }
  }();
  if (!done && started) {
    for (const ForwardItem& item : items) static_cast<ModelSequence*>(item.sequence)->MarkBroken();
  }
  return done;
}

Status MkimModel::Lens(Executor& executor, Precision precision, std::span<const float> streams,
                       const LensSink& sink) const {
  if (Status ready = CheckPrepared(precision); !ready) return ready;
  const size_t width = info_.streams * info_.hidden;
  if (streams.size() % width != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                std::to_string(streams.size()) + " floats are no rows of " + std::to_string(width),
                "give whole rows of residual streams");
  }
  if (streams.empty()) return {};
  const FlushDenormals flush;
  executor.scratch().Reset();
  BatchRows batch{executor.pool(), executor.scratch()};
  batch.rows = streams.size() / width;
  batch.precision = precision;
  try {
    return RunLens({batch, *Weights(precision), streams, sink});
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory for the scratch of a logit lens",
                "look at fewer layers or end other programs");
  }
}

}  // namespace mk
