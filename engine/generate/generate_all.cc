#include "engine/generate/generate_all.h"

#include <chrono>

namespace mk {

Status GenerateAll(const Model& model, Executor& executor, Generation& generation,
                   const std::function<bool(const GenerationStep&)>& sink,
                   ForwardObserver* observer) {
  while (!generation.finished()) {
    ForwardItem item = generation.NextItem(kMaxForwardTokens);
    const auto begin = std::chrono::steady_clock::now();
    if (Status status = model.Forward(executor, std::span(&item, 1), observer); !status) {
      return status;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    generation.Took(item.tokens.size(), took.count());
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
  return generation.sequence().EndDraft();
}

}  // namespace mk
