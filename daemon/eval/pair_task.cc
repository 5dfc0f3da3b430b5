#include "daemon/eval/pair_task.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "daemon/run_task.h"
#include "engine/sampling/log_probs.h"

namespace mk::daemon {
namespace {

double ShareOf(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  if (a.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto common = std::count_if(
      a.begin(), a.end(), [&](int32_t one) { return std::binary_search(b.begin(), b.end(), one); });
  return static_cast<double>(common) / static_cast<double>(a.size());
}

}  // namespace

void RouterPicks::Begin(size_t layers, size_t position, size_t count) {
  first_ = position;
  picks_.assign(layers, std::vector<std::vector<int32_t>>(count));
}

void RouterPicks::OnRouter(size_t /*item*/, size_t position, size_t layer,
                           std::span<const int32_t> experts, std::span<const float> /*weights*/) {
  std::vector<int32_t>& picked = picks_[layer][position - first_];
  picked.assign(experts.begin(), experts.end());
  std::sort(picked.begin(), picked.end());
}

PairTask::PairTask(std::array<Side, 2> sides, bool chunked_prefill, bool routers,
                   std::vector<ScoredText> texts, std::shared_ptr<std::vector<PairedText>> results)
    : sides_(std::move(sides)),
      chunked_prefill_(chunked_prefill),
      routers_(routers),
      texts_(std::move(texts)),
      results_(std::move(results)) {
  results_->assign(texts_.size(), {});
}

// Goes on with this text, or with the first after it that has something to score.
Status PairTask::NextText(size_t index) {
  sequences_ = {};
  current_ = index;
  first_ = 0;
  while (current_ < texts_.size() && text().first >= text().tokens.size()) ++current_;
  if (current_ == texts_.size()) return {};
  for (size_t side = 0; side < sides_.size(); ++side) {
    SequenceOptions options;
    options.precision = sides_[side].precision;
    options.max_tokens = kAnyLength;
    options.chunked_prefill = chunked_prefill_;
    auto sequence = sides_[side].loaded->model->NewSequence(options);
    if (!sequence) return Fail(sequence.error());
    sequences_[side] = std::move(*sequence);
  }
  if (routers_) {
    (*results_)[current_].overlap.assign(sides_[0].loaded->model->info().layers, 0);
  }
  return {};
}

Result<StepOutcome> PairTask::Begin() {
  StepOutcome outcome;
  if (current_ == texts_.size()) outcome.done = protocol::ScoreDone{};
  return outcome;
}

// The last token need not be read: nothing comes after it.
Result<ForwardItem> PairTask::NextItem(size_t /*max_tokens*/) {
  if (turn_ == 0) count_ = std::min(to_read() - first_, kPrefillBlock);
  rows_[turn_].resize(std::max(rows_[turn_].size(), count_ * vocab()));
  if (routers_) picks_[turn_].Begin(model().info().layers, first_, count_);
  ForwardItem item;
  item.sequence = sequences_[turn_].get();
  item.tokens = std::span(text().tokens).subspan(first_, count_);
  item.wanted = LogitsWanted::kAll;
  item.logits = std::span(rows_[turn_]).first(count_ * vocab());
  return item;
}

Result<StepOutcome> PairTask::Accept() {
  StepOutcome outcome;
  turn_ = 1 - turn_;
  if (turn_ == 1) return outcome;
  if (Status taken = TakeRows(); !taken) return Fail(taken.error());
  first_ += count_;
  if (first_ == to_read()) {
    if (Status next = NextText(current_ + 1); !next) return Fail(next.error());
  }
  if (current_ == texts_.size()) outcome.done = protocol::ScoreDone{};
  return outcome;
}

// Row r was made after the token at first_ + r, and tells what comes at first_ + r + 1.
Status PairTask::TakeRows() {
  PairedText& paired = (*results_)[current_];
  for (size_t r = 0; r < count_; ++r) {
    const size_t at = first_ + r + 1;
    if (at < text().first) continue;
    for (size_t side = 0; side < sides_.size(); ++side) {
      if (Status taken = TakeSide(side, r, text().tokens[at]); !taken) return taken;
    }
    const auto row = [&](size_t side) {
      return std::span<const float>(rows_[side]).subspan(r * vocab(), vocab());
    };
    const Result<Divergence> divergence = DivergenceOf(row(0), row(1));
    if (!divergence) return Fail(divergence.error());
    ++paired.tokens;
    paired.same_top += divergence->same_top ? 1 : 0;
    paired.shared_top += divergence->shared_top;
    paired.kl.push_back(divergence->kl);
    if (routers_) TakeRouters(r);
  }
  return {};
}

Status PairTask::TakeSide(size_t side, size_t row, int32_t id) {
  PairedText::Side& sums = (*results_)[current_].sides[side];
  const auto logits = std::span<const float>(rows_[side]).subspan(row * vocab(), vocab());
  const Result<double> log_sum = LogSumExp(logits);
  if (!log_sum) return Fail(log_sum.error());
  sums.nats += *log_sum - static_cast<double>(logits[static_cast<size_t>(id)]);
  const size_t rank = RankOf(logits, id);
  sums.top1 += rank == 1 ? 1 : 0;
  sums.top5 += rank <= 5 ? 1 : 0;
  return {};
}

void PairTask::TakeRouters(size_t row) {
  std::vector<double>& overlap = (*results_)[current_].overlap;
  for (size_t layer = 0; layer < overlap.size(); ++layer) {
    overlap[layer] += ShareOf(picks_[0].at(layer, row), picks_[1].at(layer, row));
  }
}

std::optional<protocol::Body> PairTask::Cancelled() {
  return protocol::Error{protocol::ErrorCode::kCancelled, "cancelled", {}, {}};
}

PreparedRun PreparePair(std::array<PairTask::Side, 2> sides, bool chunked_prefill, bool routers,
                        std::vector<ScoredText> texts,
                        std::shared_ptr<std::vector<PairedText>> results) {
  size_t longest = 1;
  PreparedRun run;
  for (const ScoredText& text : texts) {
    longest = std::max(longest, text.tokens.size());
    run.prompt_tokens += 2 * (text.tokens.size() - std::min<size_t>(text.tokens.size(), 1));
  }
  for (const PairTask::Side& side : sides) {
    const Model& model = *side.loaded->model;
    run.state_bytes += model.state_bytes(longest) +
                       std::min(longest, kPrefillBlock) * model.info().vocab * sizeof(float);
  }
  run.task = std::make_unique<PairTask>(std::move(sides), chunked_prefill, routers,
                                        std::move(texts), std::move(results));
  return run;
}

}  // namespace mk::daemon
