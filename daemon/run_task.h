// A run as the scheduler sees it: the engine's Generation, its text and tensors as messages.

#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/io_event.h"
#include "daemon/model_registry.h"
#include "daemon/tensor_capture.h"
#include "engine/generate/generation.h"
#include "protocol/messages.h"

namespace mk::daemon {

// Encodes the prompt and checks the options against the model; takes time with long prompts.
// Errors: bad_request, context_overflow, incompatible, not_found (no tokenizer), unsupported.
protocol::Result<PreparedRun> PrepareRun(std::shared_ptr<const LoadedModel> loaded,
                                         Precision precision, protocol::RunArgs args);

class RunTask : public StepTask {
 public:
  // What is settled before the sequence exists.
  struct Plan {
    std::shared_ptr<const LoadedModel> loaded;
    Precision precision = Precision::kExact;  // that the model is prepared for
    protocol::RunArgs args;
    std::vector<int32_t> prompt;
    uint64_t unknown = 0;  // tokens of the prompt that stand for text that cannot be spelled
    uint64_t seed = 0;
    bool chat = false;
    ChatOptions chat_options;
    std::vector<int32_t> stop_ids;
  };
  explicit RunTask(Plan plan);

  const Model& model() const override { return *plan_.loaded->model; }
  Status Start() override;
  Result<StepOutcome> Begin() override;
  bool prefilling() const override { return generation_->prefilling(); }
  Result<ForwardItem> NextItem(size_t max_tokens) override;
  Result<StepOutcome> Accept() override;
  protocol::Body Cancelled() override;
  ForwardObserver* observer() override { return capture_ ? &*capture_ : nullptr; }

 private:
  Result<KnownPrompt> MakeSequence();
  Status MakeGeneration(const KnownPrompt& known);
  PrefixShelf* shelf() const;
  void StorePrefix();
  void Settle(StepOutcome& outcome);
  void TakeStep(const GenerationStep& step, StepOutcome& outcome);
  void TakeText(const std::vector<TextPiece>& pieces);
  protocol::TokenChunk NextChunk(const GenerationStep& step);
  bool WantsLastToken() const;
  protocol::RunDone Done() const;
  void AddTokenTimes(protocol::Timing& timing) const;

  Plan plan_;
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Generation> generation_;
  std::optional<TensorCapture> capture_;
  // Of the prefix cache: places of the prompt to store at, in descending order.
  std::vector<size_t> marks_;
  std::vector<float> known_logits_;
  bool normalising_ = false;  // the last token is being ingested, for its tensors

  std::string answer_;
  std::string reasoning_;
  std::deque<TextPiece> untold_;      // text that no chunk has carried yet
  std::vector<int64_t> token_times_;  // microseconds, with `stats`
};

}  // namespace mk::daemon
