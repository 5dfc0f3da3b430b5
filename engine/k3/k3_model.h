// K3Model: a loaded Kimi K3, behind the interface of engine/model/model.h.

#pragma once

#include <memory>
#include <span>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/expert_store.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"

namespace mk::k3 {

class K3Model final : public Model {
 public:
  K3Model(ModelInfo info, std::shared_ptr<const K3Shape> shape, K3Weights weights,
          std::unique_ptr<ExpertStore> experts);

  const ModelInfo& info() const override { return info_; }
  Result<std::unique_ptr<Sequence>> NewSequence(const SequenceOptions& options) const override;
  Status Forward(Executor& executor, std::span<ForwardItem> items,
                 ForwardObserver* observer) const override;

 private:
  ModelInfo info_;
  std::shared_ptr<const K3Shape> shape_;
  K3Weights weights_;
  std::unique_ptr<ExpertStore> experts_;
};

// Loads a K3 model into memory: spine packed, experts as they are in the file. Errors as LoadModel.
Result<std::shared_ptr<const Model>> LoadK3(const MkimFile& file, const LoadOptions& options);

}  // namespace mk::k3
