// MkimModel: a model loaded from an MKIM file, as far as architectures do not differ: measuring,
// reading, spines by precision, checks of a forward pass. An architecture derives from it and says
// which tensors go where, what a sequence holds, and how a batch runs.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/arch/batch.h"
#include "engine/arch/model_sequence.h"
#include "engine/base/result.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/format/mkim_file.h"
#include "engine/format/spine_writer.h"
#include "engine/model/footprint.h"
#include "engine/model/model.h"
#include "engine/model/state.h"
#include "engine/parallel/page_buffer.h"
#include "engine/spine/spine_builder.h"
#include "engine/spine/spine_load.h"
#include "engine/stream/streamed_experts.h"

namespace mk {

// The items of one precision and one access to experts in a call of Forward. The sequences are of
// the model's own kind.
struct ForwardGroup {
  Executor& executor;
  Precision precision;
  const SpineWeights& weights;
  std::span<ForwardItem> items;
  std::span<const size_t> indices;  // of the items in the call of Forward
  ForwardObserver* observer;
  ExpertAccess experts = ExpertAccess::kWait;  // of all items
};

// Residual streams that leave for the head before the last layer. See Model::Lens.
struct LensGroup {
  const BatchRows& batch;
  const SpineWeights& weights;
  std::span<const float> streams;  // [batch.rows][streams][hidden]
  const LensSink& sink;
};

class MkimModel : public Model, public StateKeeper {
 public:
  // Reads tables, experts and the spine of options.precision into a model that was just made.
  // Errors as LoadModel.
  static Result<std::shared_ptr<const Model>> Load(std::shared_ptr<MkimModel> model,
                                                   const LoadOptions& options);

  ~MkimModel() override;
  // What the model would need; for one that was just made, instead of loading it. The fingerprint
  // is left out. Errors as MeasureModel.
  Result<ModelFootprint> Measure(size_t sequence_tokens);

  const ModelInfo& info() const override { return info_; }
  uint64_t resident_bytes() const override {
    return resident_bytes_.load() + experts_->resident_bytes();
  }
  std::optional<StreamStats> stream_stats() const override;
  Status SetStreamBudget(uint64_t bytes) const override;
  bool prepared(Precision precision) const override { return Weights(precision) != nullptr; }
  bool spine_cached(Precision precision) const override {
    return spine_cached_[static_cast<size_t>(precision)].load(std::memory_order_relaxed);
  }
  Status Prepare(Precision precision, const LoadOptions& options) const override;
  Result<TokenWork> Work(Precision precision) const override;
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const override;
  Status Forward(Executor& executor, std::span<ForwardItem> items,
                 ForwardObserver* observer) const override;
  Status Lens(Executor& executor, Precision precision, std::span<const float> streams,
              const LensSink& sink) const override;

  size_t OwnBytes(const Sequence& sequence) const override;
  std::vector<StatePage> Pages(const Sequence& sequence) const override;
  Result<StateKey> KeyOf(const Sequence& sequence) const override;
  Result<std::vector<StateSection>> Sections(const StateKey& key) const override;
  Status Save(const Sequence& sequence, const StateKey& form, const StateSink& sink) const override;
  Result<std::unique_ptr<Sequence>> Restore(const StateKey& key,
                                            const StateSource& source) const override;

 protected:
  MkimModel(std::shared_ptr<const MkimFile> file, ExpertShape experts, uint32_t spine_version);

  const MkimFile& file() const { return *file_; }
  const ExpertShape& expert_shape() const { return expert_shape_; }
  ExpertStore& experts() const { return *experts_; }

  // Completes what the base has filled in: path, fingerprint, parameters, file_bytes, special ids,
  // experts.
  virtual void Describe(ModelInfo& info) const = 0;
  // Tables that are the same in every precision. Called twice: to count, and over memory.
  virtual void LayOutTables(SpineBuilder& builder) = 0;
  // The spine of a precision; its `memory` is left empty.
  virtual std::unique_ptr<SpineWeights> LayOutSpine(SpineBuilder& builder,
                                                    Precision precision) const = 0;
  // What a token costs beside its experts.
  virtual TokenWork CountWork(const SpineWeights& weights) const = 0;
  // kOutOfMemory; may throw std::bad_alloc.
  virtual Result<std::unique_ptr<ModelSequence>> MakeSequence(
      const SequenceOptions& options) const = 0;
  // The arrays of a state; see StateKeeper::Sections.
  virtual Result<std::vector<StateSection>> LayOutState(const StateKey& key) const = 0;
  // Multiplies out an array of expanded rows from a sequence that keeps latent ones. Only called if
  // LayOutState knows such arrays. May throw std::bad_alloc.
  virtual void ExpandState(const SpineWeights& /*weights*/, const ModelSequence& /*sequence*/,
                           const StateSection& /*section*/, std::span<std::byte> /*out*/) const {}
  // Runs checked items, whose sequences have room. Does not advance them. May throw std::bad_alloc.
  virtual Status Run(const ForwardGroup& group) const = 0;
  // Norms rows as the head reads them and sends their logits. May throw std::bad_alloc.
  virtual Status RunLens(const LensGroup& group) const = 0;

 private:
  struct Planned;
  struct ExpertPlan;

  const SpineWeights* Weights(Precision precision) const {
    return weights_[static_cast<size_t>(precision)].load(std::memory_order_acquire);
  }
  void DescribeHeader();
  Status DescribeFile();
  // Of the routed experts that a token uses.
  Result<TokenWork> ExpertWork() const;
  TokenWork TotalWork(const SpineWeights& weights, const TokenWork& of_experts) const;
  Status LoadParts(const LoadOptions& options);
  Result<uint64_t> MeasureTables();
  Status ReadTables(size_t bytes, ThreadPool& pool, LoadProgress& progress);
  Status MeasureExperts(const LoadOptions& options, uint64_t rest, ExpertPlan& plan) const;
  Status OpenExperts(ExpertPlan plan, ThreadPool& pool, LoadProgress& progress);
  void RestoreHotSet(const std::string& folder);
  Result<SpinePlan> MeasureSpine(Precision precision) const;
  Status ReadSpine(Precision precision, size_t bytes, const LoadOptions& options, ThreadPool& pool,
                   LoadProgress& progress, Planned& out) const;
  // Adds a spine to the model, and has it kept if it is to be.
  void TakeSpine(Precision precision, Planned spine, const LoadOptions& options) const;
  Error NoMemory() const;
  Status CheckPrepared(Precision precision) const;
  Result<const ModelSequence*> OwnSequence(const Sequence& sequence) const;
  Status RunGroups(Executor& executor, std::span<ForwardItem> items,
                   ForwardObserver* observer) const;
  Status RunGroup(Executor& executor, std::span<ForwardItem> items, Precision precision,
                  ExpertAccess experts, ForwardObserver* observer) const;

  std::shared_ptr<const MkimFile> file_;
  const ExpertShape expert_shape_;
  const uint32_t spine_version_;
  ModelInfo info_;
  PageBuffer tables_;
  std::span<const float> codebook_;  // of VQ1 experts, or empty
  std::unique_ptr<ExpertStore> experts_;
  StreamedExperts* streamed_ = nullptr;  // experts_, if they are streamed
  std::string hot_set_path_;             // empty: none is kept

  // Spines by precision: added under the mutex, then read without it.
  mutable std::mutex prepare_mutex_;
  mutable std::array<std::unique_ptr<const SpineWeights>, kPrecisions> owned_weights_;
  mutable std::array<std::atomic<const SpineWeights*>, kPrecisions> weights_{};
  mutable std::array<std::atomic<bool>, kPrecisions> spine_cached_{};
  mutable std::atomic<uint64_t> resident_bytes_ = 0;
  // They read the spines: to go first.
  mutable std::array<std::unique_ptr<SpineWriter>, kPrecisions> spine_writers_;
};

}  // namespace mk
