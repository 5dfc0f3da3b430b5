// Texts read by two models side by side, block by block, so that the rows of logits of both are
// there at once and never leave the daemon: likelihoods, agreement, divergence, routers.
//
// The task asks for a forward pass of the first model, then for one of the second with the same
// tokens, and so on; the scheduler shares each with whatever else runs on that model.

#pragma once

#include <array>
#include <memory>
#include <vector>

#include "daemon/io_event.h"
#include "daemon/model_registry.h"
#include "daemon/score_text.h"
#include "daemon/step_task.h"
#include "engine/sampling/divergence.h"

namespace mk::daemon {

// What both models made of a text.
struct PairedText {
  struct Side {
    double nats = 0;  // sum of -log p over the scored tokens
    uint64_t top1 = 0;
    uint64_t top5 = 0;
  };
  std::array<Side, 2> sides;
  uint64_t tokens = 0;      // scored
  uint64_t same_top = 0;    // positions
  uint64_t shared_top = 0;  // tokens of Divergence::shared_top, of all positions
  std::vector<double> kl;   // [tokens]
  // [layers]: sum over positions, NaN where a layer has no router; empty where routers do not
  // compare.
  std::vector<double> overlap;
};

// The picks of one forward pass, [layer][position in the block]; used by PairTask.
class RouterPicks : public ForwardObserver {
 public:
  void Begin(size_t layers, size_t position, size_t count);
  void OnRouter(size_t item, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override;
  // Sorted; empty where a layer has no router.
  const std::vector<int32_t>& at(size_t layer, size_t row) const { return picks_[layer][row]; }

 private:
  size_t first_ = 0;
  std::vector<std::vector<std::vector<int32_t>>> picks_;
};

class PairTask : public StepTask {
 public:
  struct Side {
    std::shared_ptr<const LoadedModel> loaded;
    Precision precision = Precision::kExact;
  };
  // Both models have one vocabulary. What is found goes to `results`, one per text, before the
  // task's last message.
  PairTask(std::array<Side, 2> sides, bool chunked_prefill, bool routers,
           std::vector<ScoredText> texts, std::shared_ptr<std::vector<PairedText>> results);

  const Model& model() const override { return *sides_[turn_].loaded->model; }
  Status Start() override { return NextText(0); }
  Result<StepOutcome> Begin() override;
  bool prefilling() const override { return true; }
  Result<ForwardItem> NextItem(size_t max_tokens) override;
  Result<StepOutcome> Accept() override;
  std::optional<protocol::Body> Cancelled() override;
  ForwardObserver* observer() override { return routers_ ? &picks_[turn_] : nullptr; }

 private:
  const ScoredText& text() const { return texts_[current_]; }
  size_t to_read() const { return text().tokens.size() - 1; }
  size_t vocab() const { return sides_[0].loaded->model->info().vocab; }
  Status NextText(size_t index);
  Status TakeRows();
  Status TakeSide(size_t side, size_t row, int32_t id);
  void TakeRouters(size_t row);

  const std::array<Side, 2> sides_;
  const bool chunked_prefill_;
  const bool routers_;
  const std::vector<ScoredText> texts_;
  const std::shared_ptr<std::vector<PairedText>> results_;
  size_t current_ = 0;  // the text that is read; texts_.size(): none is left
  size_t turn_ = 0;     // of the side that reads next
  size_t first_ = 0;    // of the block that both read
  size_t count_ = 0;
  std::array<std::unique_ptr<Sequence>, 2> sequences_;
  std::array<std::vector<float>, 2> rows_;  // [count_][vocab]
  std::array<RouterPicks, 2> picks_;
};

// The task and the memory that it takes.
PreparedRun PreparePair(std::array<PairTask::Side, 2> sides, bool chunked_prefill, bool routers,
                        std::vector<ScoredText> texts,
                        std::shared_ptr<std::vector<PairedText>> results);

}  // namespace mk::daemon
