// RunLooks: what a run shows of the model at work beside tokens and tensors, and who watches its
// forward passes.

#pragma once

#include <memory>
#include <optional>

#include "daemon/expert_counter.h"
#include "daemon/model_registry.h"
#include "daemon/observer_list.h"
#include "daemon/run_lens.h"

namespace mk::daemon {

class RunLooks {
 public:
  // `capture`: of tensors and routes, null if there is none; it must live as long.
  RunLooks(const LoadedModel& loaded, Precision precision, const protocol::RunArgs& args,
           ForwardObserver* capture);
  RunLooks(const RunLooks&) = delete;
  RunLooks& operator=(const RunLooks&) = delete;

  // Null when nobody watches.
  ForwardObserver* observer() { return observers_.empty() ? nullptr : &observers_; }
  // Whether every token of the prompt must be read, and none be known.
  bool need_prompt() const { return lens_.has_value() || tells_experts_; }
  // Whether the last token must be read, too.
  bool need_answer() const { return (lens_ && lens_->every_token()) || tells_experts_; }
  // Whether a pass may have few tokens only: rows of them are held.
  bool hold_rows() const { return lens_ && lens_->whole_prompt(); }

  void Begin(const RunLens::Pass& pass);
  // See RunLens::Examine.
  Status Examine(Executor& executor, size_t end, size_t prompt_tokens,
                 const RunLens::TokenAt& token_at, std::vector<protocol::Body>& messages);
  // What is told at the end.
  void AddTo(protocol::RunDone& done) const;
  // Nothing more is shown.
  void Stop();

 private:
  const bool tells_experts_;
  std::optional<RunLens> lens_;
  std::optional<RunExpertCounter> experts_;
  ObserverList observers_;
};

}  // namespace mk::daemon
