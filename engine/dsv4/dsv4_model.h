// Dsv4Model: a loaded DeepSeek-V4 model.

#pragma once

#include <memory>
#include <vector>

#include "engine/arch/mkim_model.h"
#include "engine/base/result.h"
#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"
#include "engine/format/mkim_file.h"
#include "engine/model/model.h"

namespace mk::dsv4 {

class Dsv4Model final : public MkimModel {
 public:
  explicit Dsv4Model(std::shared_ptr<const MkimFile> file);

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
  Status Run(const ForwardGroup& group) const override;
  Status RunLens(const LensGroup& group) const override;

 private:
  const std::shared_ptr<const Dsv4Shape> shape_;
  Dsv4Tables tables_;
};

// Errors as LoadModel.
Result<std::shared_ptr<const Model>> LoadDsv4(std::shared_ptr<const MkimFile> file,
                                              const LoadOptions& options);

// Errors as MeasureModel.
Result<ModelFootprint> MeasureDsv4(std::shared_ptr<const MkimFile> file, size_t sequence_tokens);

}  // namespace mk::dsv4
