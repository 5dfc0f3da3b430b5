// RunLens: the logit lens and the sizes of hidden states of one run.
//
// A forward pass shows residual streams; which token came next is known only afterwards. So the
// rows that are looked at are kept during the pass, and go through the head when it is over: all
// layers of a position in one product. Positions that the run does not keep are never looked at.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "protocol/messages.h"

namespace mk::daemon {

class RunLens : public ForwardObserver {
 public:
  // Whether there is anything for it to do.
  static bool Wanted(const protocol::RunArgs& args);
  // A layer that the model does not have: bad_request.
  static protocol::Status Check(const ModelInfo& info, const protocol::RunArgs& args);
  // What it holds at most, in bytes, the logits of a product included.
  static uint64_t Bytes(const ModelInfo& info, const protocol::RunArgs& args);

  // Of checked arguments. The tokenizer may be null.
  RunLens(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
          Precision precision, const protocol::RunArgs& args);

  struct Pass {
    size_t first = 0;  // absolute position
    size_t tokens = 0;
    bool of_prompt = false;
    bool ends_prompt = false;
  };
  void Begin(const Pass& pass);
  // The token that stands at a position, if it is known.
  using TokenAt = std::function<std::optional<int32_t>(size_t position)>;
  // After the pass: appends what is to be said of the positions before `end`. `prompt_tokens`:
  // position of the first generated token. Errors: as Model::Lens.
  Status Examine(Executor& executor, size_t end, size_t prompt_tokens, const TokenAt& token_at,
                 std::vector<protocol::Body>& messages);
  // Whether there is still something to come: of tokens of the answer, too, and of all tokens of
  // the prompt.
  bool wanted() const { return stats_wanted_ || mode_ != Mode::kNone; }
  bool every_token() const { return mode_ == Mode::kAnswer || whole_prompt(); }
  bool whole_prompt() const { return mode_ == Mode::kAll; }

  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float> rows) override;
  bool WantsOutput(size_t item) const override;
  void OnOutput(size_t item, size_t position, std::span<const float> rows) override;

 private:
  enum class Mode { kNone, kLast, kAnswer, kAll };
  static Mode ModeOf(const std::string& name);
  static size_t KeptLayers(const ModelInfo& info, const protocol::RunArgs& args);

  std::span<float> Row(size_t kept, size_t slot);
  std::optional<size_t> Kept(size_t position) const;
  Status ExamineOne(Executor& executor, size_t kept, const TokenAt& token_at,
                    protocol::LensChunk& chunk, protocol::HiddenStatsChunk* stats);
  std::string TextOf(int32_t id) const;

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Precision precision_;
  const size_t top_;
  const size_t width_;  // of all streams of a row
  Mode mode_;
  bool stats_wanted_;
  std::vector<bool> shown_;  // [layer]
  // [layer]: where a row of it is kept, or not at all. The last layer always is, in the last place.
  std::vector<std::optional<size_t>> slot_of_;
  std::vector<size_t> layer_of_;  // [slot]

  size_t first_ = 0;  // position of the first row that is kept
  size_t kept_ = 0;
  size_t stats_at_ = 0;  // which of them hidden_stats are of
  bool ends_prompt_ = false;
  std::vector<float> rows_;  // [kept][slot][width]
  std::vector<double> rms_;  // [layer], at stats_at_
  double output_rms_ = 0;
};

}  // namespace mk::daemon
