// K3Model: a loaded Kimi K3 model.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/arch/mkim_model.h"
#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/shape.h"
#include "engine/model/model.h"

namespace mk::k3 {

class K3Model final : public MkimModel {
 public:
  explicit K3Model(std::shared_ptr<const MkimFile> file);

  uint64_t state_bytes(size_t tokens) const override;
  uint64_t draft_bytes(size_t tokens) const override;

 protected:
  void Describe(ModelInfo& info) const override;
  void LayOutTables(SpineBuilder& builder) override;
  std::unique_ptr<SpineWeights> LayOutSpine(SpineBuilder& builder,
                                            Precision precision) const override;
  TokenWork CountWork(const SpineWeights& weights) const override;
  Result<std::unique_ptr<ModelSequence>> MakeSequence(
      const SequenceOptions& options) const override;
  Result<std::vector<StateSection>> LayOutState(const StateKey& key) const override;
  void ExpandState(const SpineWeights& weights, const ModelSequence& sequence,
                   const StateSection& section, std::span<std::byte> out) const override;
  Status Run(const ForwardGroup& group) const override;
  Status RunLens(const LensGroup& group) const override;

 private:
  const std::shared_ptr<const K3Shape> shape_;
  const float* embedding_ = nullptr;  // [V][d], row-major
};

// Errors as LoadModel.
Result<std::shared_ptr<const Model>> LoadK3(std::shared_ptr<const MkimFile> file,
                                            const LoadOptions& options);

// Errors as MeasureModel.
Result<ModelFootprint> MeasureK3(std::shared_ptr<const MkimFile> file, size_t sequence_tokens);

}  // namespace mk::k3
