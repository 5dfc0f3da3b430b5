#include "daemon/score_task.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "daemon/run_task.h"
#include "daemon/stream_wish.h"
#include "daemon/token_text.h"
#include "engine/sampling/log_probs.h"

namespace mk::daemon {
namespace {

// Rows of logits that a task holds at most. Prompts may be cut at its multiples.
constexpr size_t kMostRows = kPrefillBlock;

std::string TooLong(size_t index, size_t tokens, size_t limit) {
  return "text " + std::to_string(index + 1) + " has " + std::to_string(tokens) +
         " tokens with its context, more than the limit of " + std::to_string(limit);
}

}  // namespace

protocol::Result<PreparedRun> PrepareScore(std::shared_ptr<const LoadedModel> loaded,
                                           Precision precision, protocol::ScoreArgs args) {
  if (args.stream_fallback) {
    auto shadows = HasShadows(*loaded->model);
    if (!shadows) return protocol::Fail(std::move(shadows.error()));
    args.stream_fallback = *shadows;
  }
  const ModelInfo& info = loaded->model->info();
  const size_t limit = ContextLimit(info);
  std::vector<ScoredText> texts;
  PreparedRun run;
  size_t longest = 1;
  for (protocol::ScoreItem& item : std::exchange(args.texts, {})) {
    auto scored = EncodeScored(*loaded, std::move(item), args.plain);
    if (!scored) return protocol::Fail(std::move(scored.error()));
    const size_t tokens = scored->tokens.size();
    if (tokens > limit) {
      return protocol::Fail(protocol::ErrorCode::kContextOverflow,
                            TooLong(texts.size(), tokens, limit), "score it in pieces");
    }
    longest = std::max(longest, tokens);
    run.prompt_tokens += tokens - std::min<size_t>(tokens, 1);
    texts.push_back(std::move(*scored));
  }
  run.state_bytes = loaded->model->state_bytes(longest) +
                    std::min(longest, kMostRows) * info.vocab * sizeof(float);
  run.task =
      std::make_unique<ScoreTask>(std::move(loaded), precision, std::move(args), std::move(texts));
  return run;
}

ScoreTask::ScoreTask(std::shared_ptr<const LoadedModel> loaded, Precision precision,
                     protocol::ScoreArgs args, std::vector<ScoredText> texts)
    : loaded_(std::move(loaded)),
      precision_(precision),
      args_(std::move(args)),
      texts_(std::move(texts)),
      scores_(texts_.size()) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    const size_t tokens = texts_[i].tokens.size();
    scores_[i].tokens = tokens - texts_[i].first;
    scores_[i].context_tokens = texts_[i].first;
    scores_[i].bytes = texts_[i].bytes;
    scores_[i].unk = texts_[i].unknown;
    tokens_total_ += tokens - std::min<size_t>(tokens, 1);
  }
}

// Goes on with this text, or with the first after it that has something to score.
Status ScoreTask::NextText(size_t index) {
  sequence_.reset();
  current_ = index;
  while (current_ < texts_.size() && text().first >= text().tokens.size()) {
    tokens_read_ += text().tokens.size() - std::min<size_t>(text().tokens.size(), 1);
    ++current_;
  }
  if (current_ == texts_.size()) return {};
  SequenceOptions options;
  options.precision = precision_;
  options.max_tokens = kAnyLength;
  options.chunked_prefill = args_.chunked_prefill;
  auto sequence = model().NewSequence(options);
  if (!sequence) return Fail(sequence.error());
  sequence_ = std::move(*sequence);
  return {};
}

Result<StepOutcome> ScoreTask::Begin() {
  StepOutcome outcome;
  if (current_ == texts_.size()) outcome.done = Done();
  return outcome;
}

// The last token need not be read: nothing comes after it.
Result<ForwardItem> ScoreTask::NextItem(size_t max_tokens) {
  const size_t position = sequence_->length();
  size_t most = std::max(max_tokens / kPrefillBlock, size_t{1}) * kPrefillBlock;
  if (position + most >= text().first) most = kMostRows;
  in_flight_ = std::min(to_read() - position, most);
  ForwardItem item;
  item.sequence = sequence_.get();
  item.tokens = std::span(text().tokens).subspan(position, in_flight_);
  item.wanted = LogitsWanted::kNone;
  if (args_.stream_fallback) item.experts = ExpertAccess::kShadow;
  if (position + in_flight_ >= text().first) {
    const size_t vocab = model().info().vocab;
    rows_.resize(std::max(rows_.size(), in_flight_ * vocab));
    item.wanted = LogitsWanted::kAll;
    item.logits = std::span(rows_).first(in_flight_ * vocab);
  }
  return item;
}

void ScoreTask::Shadowed(uint64_t /*picks*/) {
  shadow_tokens_ += in_flight_;
}

Result<StepOutcome> ScoreTask::Accept() {
  StepOutcome outcome;
  const size_t end = sequence_->length();
  if (Status taken = TakeRows(end - in_flight_, in_flight_, outcome); !taken) {
    return Fail(taken.error());
  }
  tokens_read_ += std::exchange(in_flight_, 0);
  if (end == to_read()) {
    EndText();
    if (Status next = NextText(current_ + 1); !next) return Fail(next.error());
  }
  if (current_ == texts_.size()) {
    outcome.done = Done();
  } else {
    outcome.messages.emplace_back(
        protocol::Progress{"score", tokens_read_, tokens_total_, "tokens"});
  }
  return outcome;
}

// Row r was made after the token at first + r, and tells what comes at first + r + 1.
Status ScoreTask::TakeRows(size_t first, size_t count, StepOutcome& outcome) {
  const size_t vocab = model().info().vocab;
  protocol::TextScore& score = scores_[current_];
  protocol::ScoreChunk chunk;
  chunk.item = static_cast<uint32_t>(current_);
  for (size_t r = 0; r < count; ++r) {
    const size_t at = first + r + 1;
    if (at < text().first) continue;
    const auto row = std::span<const float>(rows_).subspan(r * vocab, vocab);
    const int32_t id = text().tokens[at];
    const Result<double> log_sum = LogSumExp(row);
    if (!log_sum) {
      return Fail(ErrorCode::kNumeric, log_sum.error().message + " (position " +
                                           std::to_string(at) + " of text " +
                                           std::to_string(current_ + 1) + ")");
    }
    const double logprob = static_cast<double>(row[static_cast<size_t>(id)]) - *log_sum;
    const size_t rank = RankOf(row, id);
    score.logprob += logprob;
    score.top1 += rank == 1 ? 1 : 0;
    score.top5 += rank <= 5 ? 1 : 0;
    if (!args_.tokens) continue;
    if (chunk.ids.empty()) chunk.index = at - text().first;
    chunk.ids.push_back(id);
    chunk.pieces.push_back(loaded_->tokenizer ? TokenText(*loaded_->tokenizer, id) : "");
    chunk.logprobs.push_back(logprob);
    chunk.ranks.push_back(static_cast<uint32_t>(rank));
  }
  if (!chunk.ids.empty()) outcome.messages.emplace_back(std::move(chunk));
  return {};
}

void ScoreTask::EndText() {
  protocol::TextScore& score = scores_[current_];
  if (score.tokens > 0) {
    // Replies carry finite numbers only, also those of a model that is badly broken.
    score.perplexity = std::min(std::exp(-score.logprob / static_cast<double>(score.tokens)),
                                std::numeric_limits<double>::max());
  }
  if (score.bytes > 0) {
    score.bits_per_byte = -score.logprob / (std::numbers::ln2 * static_cast<double>(score.bytes));
  }
}

std::optional<protocol::Body> ScoreTask::Cancelled() {
  return protocol::Error{protocol::ErrorCode::kCancelled, "cancelled", {}, {}};
}

protocol::ScoreDone ScoreTask::Done() const {
  protocol::ScoreDone done;
  done.texts = scores_;
  done.chunked_prefill = args_.chunked_prefill;
  done.trust.degraded = shadow_tokens_ > 0;
  done.trust.shadow_tokens = shadow_tokens_;
  done.trust.precision = PrecisionName(precision_);
  done.trust.fingerprint = model().info().fingerprint;
  done.trust.model_path = model().info().path;
  done.trust.build_id = protocol::BuildId();
  uint64_t unknown = 0;
  for (const protocol::TextScore& score : scores_) unknown += score.unk;
  if (unknown > 0) {
    done.warnings.push_back(std::to_string(unknown) +
                            " tokens stand for text that the vocabulary cannot spell");
  }
  return done;
}

}  // namespace mk::daemon
