// A score as the scheduler sees it: texts read one after the other, each from an empty state. Of
// the logits after a token only what they give to the next one is kept.

#pragma once

#include <memory>
#include <vector>

#include "daemon/io_event.h"
#include "daemon/model_registry.h"
#include "daemon/score_text.h"
#include "daemon/step_task.h"

namespace mk::daemon {

// Encodes the texts; takes time with long ones. Errors: those of EncodeScored, context_overflow.
protocol::Result<PreparedRun> PrepareScore(std::shared_ptr<const LoadedModel> loaded,
                                           Precision precision, protocol::ScoreArgs args);

class ScoreTask : public StepTask {
 public:
  // `texts` is not empty. Of the arguments the texts are not needed any more.
  ScoreTask(std::shared_ptr<const LoadedModel> loaded, Precision precision,
            protocol::ScoreArgs args, std::vector<ScoredText> texts);

  const Model& model() const override { return *loaded_->model; }
  Status Start() override { return NextText(0); }
  Result<StepOutcome> Begin() override;
  bool prefilling() const override { return true; }
  Result<ForwardItem> NextItem(size_t max_tokens) override;
  void Shadowed(uint64_t picks) override;
  Result<StepOutcome> Accept() override;
  std::optional<protocol::Body> Cancelled() override;

 private:
  const ScoredText& text() const { return texts_[current_]; }
  size_t to_read() const { return text().tokens.size() - 1; }
  Status NextText(size_t index);
  Status TakeRows(size_t first, size_t count, StepOutcome& outcome);
  void EndText();
  protocol::ScoreDone Done() const;

  const std::shared_ptr<const LoadedModel> loaded_;
  const Precision precision_;
  const protocol::ScoreArgs args_;
  const std::vector<ScoredText> texts_;
  std::vector<protocol::TextScore> scores_;  // [texts]
  size_t current_ = 0;                       // the text that is read; texts_.size(): none is left
  std::unique_ptr<Sequence> sequence_;
  size_t in_flight_ = 0;      // tokens of the item that is being run
  std::vector<float> rows_;   // [in_flight][vocab]
  uint64_t tokens_read_ = 0;  // of all texts
  uint64_t tokens_total_ = 0;
  uint64_t shadow_tokens_ = 0;  // that shadows served
};

}  // namespace mk::daemon
