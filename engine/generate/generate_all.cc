#include "engine/generate/generate_all.h"

namespace mk {

Status GenerateAll(const Model& model, Executor& executor, Generation& generation,
                   const std::function<bool(const GenerationStep&)>& sink,
                   ForwardObserver* observer) {
  while (!generation.finished()) {
    ForwardItem item = generation.NextItem(kMaxForwardTokens);
    if (Status status = model.Forward(executor, std::span(&item, 1), observer); !status) {
      return status;
    }
    Result<GenerationStep> step = generation.Accept();
    if (!step) return Fail(step.error());
    if (sink && !sink(*step) && !generation.finished()) {
      const GenerationStep last = generation.Cancel();
      sink(last);
    }
  }
  if (std::optional<ForwardItem> item = generation.NormaliseItem()) {
    if (Status status = model.Forward(executor, std::span(&*item, 1), observer); !status) {
      return status;
    }
    generation.AcceptNormalised();
  }
  return {};
}

}  // namespace mk
