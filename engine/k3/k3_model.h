// K3Model: a loaded Kimi K3 model.

#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/format/spine_writer.h"
#include "engine/k3/expert_store.h"
#include "engine/k3/shape.h"
#include "engine/k3/spine_load.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"

namespace mk::k3 {

class K3Model final : public Model {
 public:
  // Reads tables, experts and the spine of options.precision.
  static Result<std::shared_ptr<const Model>> Load(std::shared_ptr<const MkimFile> file,
                                                   const LoadOptions& options);

  const ModelInfo& info() const override { return info_; }
  uint64_t resident_bytes() const override { return resident_bytes_.load(); }
  bool prepared(Precision precision) const override { return Weights(precision) != nullptr; }
  bool spine_cached(Precision precision) const override {
    return spine_cached_[static_cast<size_t>(precision)].load(std::memory_order_relaxed);
  }
  Status Prepare(Precision precision, const LoadOptions& options) const override;
  Result<TokenWork> Work(Precision precision) const override;
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const override;
  Status Forward(Executor& executor, std::span<ForwardItem> items,
                 ForwardObserver* observer) const override;

 private:
  K3Model(std::shared_ptr<const MkimFile> file, ModelInfo info);

  const K3Weights* Weights(Precision precision) const {
    return weights_[static_cast<size_t>(precision)].load(std::memory_order_acquire);
  }
  // Adds a spine to the model, and has it kept if it is to be.
  void TakeSpine(Precision precision, LoadedSpine spine, const LoadOptions& options) const;
  // The items of one precision.
  Status ForwardGroup(Executor& executor, Precision precision, std::span<ForwardItem> items,
                      std::span<const size_t> indices, ForwardObserver* observer) const;
  Status ForwardAll(Executor& executor, std::span<ForwardItem> items,
                    ForwardObserver* observer) const;

  std::shared_ptr<const MkimFile> file_;
  ModelInfo info_;
  std::shared_ptr<const K3Shape> shape_;
  K3Tables tables_;
  std::unique_ptr<ExpertStore> experts_;

  // Spines by precision: added under the mutex, then read without it.
  mutable std::mutex prepare_mutex_;
  mutable std::array<std::unique_ptr<const K3Weights>, kPrecisions> owned_weights_;
  mutable std::array<std::atomic<const K3Weights*>, kPrecisions> weights_{};
  mutable std::array<std::atomic<bool>, kPrecisions> spine_cached_{};
  mutable std::atomic<uint64_t> resident_bytes_ = 0;
  // They read the spines: to go first.
  mutable std::array<std::unique_ptr<SpineWriter>, kPrecisions> spine_writers_;
};

// Errors as LoadModel.
Result<std::shared_ptr<const Model>> LoadK3(std::shared_ptr<const MkimFile> file,
                                            const LoadOptions& options);

}  // namespace mk::k3
