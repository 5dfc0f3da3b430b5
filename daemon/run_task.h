// A run as the scheduler sees it: the engine's Generation, its text and tensors as messages.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/io_event.h"
#include "daemon/model_registry.h"
#include "daemon/run_looks.h"
#include "daemon/run_state.h"
#include "daemon/tensor_capture.h"
#include "engine/generate/generation.h"
#include "protocol/messages.h"

namespace mk::daemon {

// Limit of sequences that others may go on from: requests have limits, what was read has none (but
// for the model's own).
inline constexpr size_t kAnyLength = size_t{1} << 40;
// Tokens that a request may have, prompt and answer together, where so many have been read before.
size_t ContextLimit(const ModelInfo& info, size_t read = 0);

// What text is told that a model without a tokenizer cannot take.
protocol::Error NoTokenizer(const LoadedModel& loaded);

// Encodes the prompt and checks the options against the model; takes time with long prompts.
// Errors: bad_request (no prompt, too, and nothing to go on from without one), context_overflow,
// incompatible, not_found (no tokenizer), unsupported.
protocol::Result<PreparedRun> PrepareRun(std::shared_ptr<const LoadedModel> loaded,
                                         Precision precision, protocol::RunArgs args,
                                         const RunStart& start = {});

class RunTask : public StepTask {
 public:
  // What is settled before the sequence exists.
  struct Plan {
    std::shared_ptr<const LoadedModel> loaded;
    Precision precision = Precision::kExact;  // that the model is prepared for
    protocol::RunArgs args;
    std::vector<int32_t> prompt;  // all of it, what a state has read included
    SharedState base;             // whose tokens the prompt begins with; null: none
    size_t on_top = 0;            // tokens of the prompt before those that the request gave
    bool leave_state = false;
    uint64_t unknown = 0;  // tokens of the prompt that stand for text that cannot be spelled
    SamplingOptions sampling;
    bool chat = false;
    ChatOptions chat_options;
    std::vector<int32_t> stop_ids;
  };
  explicit RunTask(Plan plan);

  // See PreparedRun::fetch.
  std::function<void()> FetchPrefix() const;

  const Model& model() const override { return *plan_.loaded->model; }
  ~RunTask() override;
  Status Start() override;
  const StepTask* Awaits() override;
  Result<StepOutcome> Begin() override;
  bool prefilling() const override { return generation_->prefilling(); }
  Result<ForwardItem> NextItem(size_t max_tokens) override;
  void Took(size_t rows, double seconds) override { generation_->Took(rows, seconds); }
  void Shadowed(uint64_t picks) override;
  Result<StepOutcome> Accept() override;
  Status Examine(Executor& executor, StepOutcome& outcome) override;
  std::optional<protocol::Body> Cancelled() override;
  SharedState Leave(Reservation& memory) override;
  ForwardObserver* observer() override { return looks_->observer(); }

 private:
  Result<KnownPrompt> MakeSequence();
  Status CopyBase();
  Status MakeGeneration(const KnownPrompt& known);
  PrefixShelf* shelf() const;
  PrefixKind kind() const { return {plan_.precision, plan_.args.chunked_prefill}; }
  PrefixWait FindWait() const;
  Status StartAgain();
  void ShowReading();
  void StorePrefix();
  void ShowStep(const GenerationStep& step, StepOutcome& outcome);
  void Settle(StepOutcome& outcome);
  void TakeText(const std::vector<TextPiece>& pieces);
  protocol::TokenChunk NextChunk(const EmittedToken& token, size_t index,
                                 std::span<const float> logits);
  bool WantsLastToken() const;
  std::optional<int32_t> TokenAt(size_t position) const;
  std::vector<int32_t> ClosingIds() const;
  protocol::RunDone Done() const;
  void AddTokenTimes(protocol::Timing& timing) const;

  Plan plan_;
  std::optional<StreamStats> stream_before_;  // of a streamed model
  size_t item_tokens_ = 0;
  uint64_t shadow_tokens_ = 0;  // that shadows served
  std::unique_ptr<Sequence> sequence_;
  std::unique_ptr<Generation> generation_;
  std::optional<TensorCapture> capture_;
  std::optional<RunLooks> looks_;
  // Of the prefix cache: places of the prompt to store at, in descending order.
  std::vector<size_t> marks_;
  std::shared_ptr<PrefixReading> reading_;  // as others see it; null: it stores nothing
  PrefixWait wait_;
  std::vector<float> known_logits_;
  const char* prefix_ = "cold";        // RunDone::prefix
  std::vector<int32_t> base_closing_;  // of the base, when nothing is read on top of it
  bool normalising_ = false;  // the last token is being ingested, for its tensors or the state

  std::string answer_;
  std::string reasoning_;
  std::deque<TextPiece> untold_;      // text that no chunk has carried yet
  std::vector<int64_t> token_times_;  // microseconds, with `stats`
};

}  // namespace mk::daemon
