#include "engine/generate/generation.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/unicode.h"

namespace mk {
namespace {

static_assert(1 + kMaxDraft == kMaxDraftTokens);

// Room reserved ahead, so that emitting allocates nothing for turns of ordinary length.
constexpr size_t kReserveEmitted = 4096;

GenerationTimes::Point Now() {
  return std::chrono::steady_clock::now();
}

// What the sequence has read before is known to be good.
Status CheckPrompt(std::span<const int32_t> prompt, const KnownPrompt& known, size_t vocab) {
  if (prompt.empty() && known.logits.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "the prompt is empty", "give at least one token");
  }
  for (size_t i = known.tokens; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || static_cast<size_t>(prompt[i]) >= vocab) {
      return Fail(ErrorCode::kInvalidArgument,
                  "prompt token " + std::to_string(i) + " is " + std::to_string(prompt[i]) +
                      ", outside the model's vocabulary of " + std::to_string(vocab),
                  "use ids from 0 to " + std::to_string(vocab - 1));
    }
  }
  return {};
}

Status CheckStops(const std::vector<std::string>& stops, bool has_tokenizer) {
  if (!stops.empty() && !has_tokenizer) {
    return Fail(ErrorCode::kInvalidArgument, "stop strings need a tokenizer",
                "give a vocabulary, or leave the stop strings out");
  }
  if (stops.size() > kMaxStopStrings) {
    return Fail(ErrorCode::kInvalidArgument, "more than 16 stop strings", "give fewer of them");
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      return Fail(ErrorCode::kInvalidArgument, "a stop string must have 1 to 256 bytes",
                  "give a shorter one");
    }
    if (!DecodeUtf8(stop)) {
      return Fail(ErrorCode::kInvalidArgument, "a stop string is not UTF-8",
                  "convert it to UTF-8 first");
    }
  }
  return {};
}

Status CheckSpeculation(const SpeculationOptions& options) {
  if (options.longest() <= kMaxDraft) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "a draft may have at most " + std::to_string(kMaxDraft) + " tokens",
              "ask for shorter ones");
}

Status CheckRoom(size_t held, size_t prompt, size_t max_new, size_t limit) {
  const bool fits = held <= limit && prompt <= limit - held && max_new <= limit - held - prompt;
  if (fits) return {};
  const std::string before =
      held == 0 ? std::string() : std::to_string(held) + " tokens of context, ";
  return Fail(ErrorCode::kContextOverflow,
              before + std::to_string(prompt) + " prompt tokens and " + std::to_string(max_new) +
                  " new ones exceed the context limit of " + std::to_string(limit) + " tokens",
              "shorten the prompt or ask for fewer tokens");
}

Status CheckKnown(const KnownPrompt& known, size_t held, size_t prompt, size_t vocab) {
  if (known.tokens > held || known.tokens > prompt) {
    return Fail(ErrorCode::kInvalidArgument, "more of the prompt is called known than there is");
  }
  if (known.tokens == prompt && known.logits.size() != vocab) {
    return Fail(ErrorCode::kInvalidArgument, "the logits after a known prompt are missing");
  }
  return {};
}

}  // namespace

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

Generation::Generation(Sequence& sequence, size_t vocab, std::vector<int32_t> prompt,
                       GenerationOptions options)
    : sequence_(sequence),
      prompt_(std::move(prompt)),
      options_(std::move(options)),
      sampler_(options_.sampling, prompt_),
      vocab_(vocab),
      logits_((1 + options_.speculation.longest()) * vocab) {
  if (options_.speculation.shadow > 0) {
    shadow_.emplace(options_.speculation.shadow);
  } else if (options_.speculation.on()) {
    speculator_.emplace(options_.speculation, vocab, options_.pass_costs);
  }
  emitted_.reserve(std::min(options_.max_new, kReserveEmitted));
  times_.created = Now();
}

Result<std::unique_ptr<Generation>> Generation::Create(Sequence& sequence, size_t vocab,
                                                       std::vector<int32_t> prompt,
                                                       GenerationOptions options,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       std::unique_ptr<ChannelParser> channels,
                                                       const KnownPrompt& known) {
  for (const Status& status :
       {CheckPrompt(prompt, known, vocab), ValidateSampling(options.sampling),
        ValidateTokens(options.sampling.processing, vocab),
        CheckStops(options.stops, tokenizer != nullptr), CheckSpeculation(options.speculation),
        CheckKnown(known, sequence.length(), prompt.size(), vocab)}) {
    if (!status) return Fail(status.error());
  }
  if (Status room = CheckRoom(sequence.length() - known.tokens, prompt.size(), options.max_new,
                              options.context_limit);
      !room) {
    return Fail(room.error());
  }
  std::unique_ptr<Generation> made(
      new Generation(sequence, vocab, std::move(prompt), std::move(options)));
  if (tokenizer) {
    made->output_.emplace(std::move(tokenizer), std::move(channels), made->options_.stops);
  }
  made->known_ = made->ingested_ = known.tokens;
  if (!made->prefilling())
    std::copy(known.logits.begin(), known.logits.end(), made->logits_.begin());
  return made;
}

Result<GenerationStep> Generation::Begin() {
  if (prefilling() || finished() || !emitted_.empty()) return GenerationStep{};
  times_.prefill_started = Now();
  return PromptDone();
}

ForwardItem Generation::NextItem(size_t max_tokens) {
  ForwardItem item;
  item.sequence = &sequence_;
  item.wanted = LogitsWanted::kNone;
  if (finished() || max_tokens == 0) return item;
  if (ingested_ == known_) times_.prefill_started = Now();
  if (!prefilling()) return DecodeItem(max_tokens);
  if (speculator_) speculator_->CatchUp(prompt_, {});
  const size_t left = prompt_.size() - ingested_;
  in_flight_ = left;
  if (left > max_tokens) {
    const size_t position = sequence_.length();
    const size_t end = (position + max_tokens) / kPrefillBlock * kPrefillBlock;
    in_flight_ = end > position ? end - position : 0;
  }
  item.tokens = std::span(prompt_).subspan(ingested_, in_flight_);
  if (in_flight_ == left) {
    item.wanted = LogitsWanted::kLast;
    item.logits = std::span(logits_).first(vocab_);
  }
  return item;
}

ForwardItem Generation::DecodeItem(size_t max_tokens) {
  item_.assign(1, emitted_.back());
  if (shadow_) {
    const size_t room = std::min(max_tokens, options_.max_new - emitted_.size()) - 1;
    const ForwardItem guess =
        shadow_->Next(sequence_, emitted_, room, std::span(logits_).first(vocab_));
    if (shadow_->running()) return guess;
    const std::vector<int32_t> tokens = shadow_->Take();
    item_.insert(item_.end(), tokens.begin(),
                 tokens.begin() + static_cast<std::ptrdiff_t>(std::min(room, tokens.size())));
  }
  // Of as many tokens as are left the last comes from the logits behind the draft.
  if (speculator_) AddDraft(std::min(max_tokens, options_.max_new - emitted_.size()) - 1);
  ForwardItem item;
  item.sequence = &sequence_;
  item.tokens = item_;
  item.draft = item_.size() > 1;
  item.wanted = item_.size() > 1 ? LogitsWanted::kAll : LogitsWanted::kLast;
  item.logits = std::span(logits_).first(item_.size() * vocab_);
  return item;
}

void Generation::AddDraft(size_t most) {
  if (!speculator_->CatchUp(prompt_, emitted_)) return;
  const std::span<const int32_t> draft = speculator_->NextDraft(most);
  // Nothing comes after a stop token.
  const auto end = std::find_first_of(draft.begin(), draft.end(), options_.stop_ids.begin(),
                                      options_.stop_ids.end());
  item_.insert(item_.end(), draft.begin(), end);
}

void Generation::Took(size_t rows, double seconds) {
  if (speculator_ && !prefilling() && !finished()) speculator_->Took(rows, item_.size(), seconds);
}

Result<GenerationStep> Generation::Accept() {
  if (finished()) {
    GenerationStep step;
    step.finish = finish_;
    return step;
  }
  if (prefilling()) {
    ingested_ += std::exchange(in_flight_, 0);
    return prefilling() ? Result<GenerationStep>(GenerationStep{}) : PromptDone();
  }
  if (shadow_ && shadow_->running()) {
    shadow_->Accept(sampler_, draws_, emitted_, row(0), options_.stop_ids);
    return GenerationStep{};
  }
  return AcceptItem();
}

// Picks from one row after the other, as long as what was picked is what had been drafted.
Result<GenerationStep> Generation::AcceptItem() {
  GenerationStep step;
  do {
    pending_ = false;
    if (Status selected = Select(step); !selected) return Fail(selected.error());
  } while (!finished() && step.rows < item_.size() && item_[step.rows] == emitted_.back());
  if (Status forgotten = ForgetDraft(step); !forgotten) return Fail(forgotten.error());
  last_row_ = step.rows - 1;
  step.drafted = item_.size() - 1;
  step.finish = finish_;
  return step;
}

// The sequence keeps the tokens whose rows were picked from.
Status Generation::ForgetDraft(const GenerationStep& step) {
  double seconds = 0;
  if (const size_t wrong = item_.size() - step.rows; wrong > 0) {
    const auto begin = Now();
    if (Status back = sequence_.Rewind(sequence_.length() - wrong); !back) return back;
    seconds = std::chrono::duration<double>(Now() - begin).count();
  }
  const bool bonus = step.rows == item_.size() && step.tokens.size() == step.rows;
  if (speculator_) speculator_->Verified(item_.size() - 1, step.rows - 1, bonus, seconds);
  if (shadow_) shadow_->Verified(item_.size() - 1, step.rows - 1, bonus, seconds);
  return {};
}

Result<GenerationStep> Generation::PromptDone() {
  times_.prefill_done = Now();
  GenerationStep step;
  if (options_.max_new > 0) {
    if (Status selected = Select(step); !selected) return Fail(selected.error());
  } else {
    step.rows = 1;
    Finish(FinishReason::kLength, step.text);
  }
  step.finish = finish_;
  return step;
}

// From the next row of logits.
Status Generation::Select(GenerationStep& step) {
  Result<Picked> picked = sampler_.Pick(row(step.rows), draws_, emitted_);
  if (!picked) {
    Error error = picked.error();
    // The draft behind the row is in the sequence still.
    const size_t behind = item_.empty() ? 0 : item_.size() - 1 - step.rows;
    error.message += " (position " + std::to_string(sequence_.length() - behind) + ")";
    return Fail(std::move(error));
  }
  ++draws_;
  ++step.rows;
  const auto& stops = options_.stop_ids;
  if (std::find(stops.begin(), stops.end(), picked->id) != stops.end()) {
    stop_id_ = picked->id;
    Finish(FinishReason::kStop, step.text);
  } else {
    Emit(*picked, step);
  }
  return {};
}

void Generation::Emit(const Picked& picked, GenerationStep& step) {
  if (emitted_.empty()) times_.first_token = Now();
  emitted_.push_back(picked.id);
  pending_ = true;
  EmittedToken& token = step.tokens.emplace_back();
  token.id = picked.id;
  token.probability = picked.probability;
  const bool stopped = output_ && !output_->Push(picked.id, token.text);
  if (output_) token.channel = output_->channel();
  if (stopped) {
    Finish(FinishReason::kStop, token.text);
  } else if (emitted_.size() >= options_.max_new) {
    Finish(FinishReason::kLength, token.text);
  }
}

void Generation::Finish(FinishReason reason, std::vector<TextPiece>& text) {
  finish_ = reason;
  times_.finished = Now();
  if (output_) output_->Finish(text);
  // The last characters may complete a stop string only now: a broken one became U+FFFD.
  if (stop_string() && reason == FinishReason::kLength) finish_ = FinishReason::kStop;
}

GenerationStep Generation::Cancel() {
  GenerationStep step;
  if (!finished()) Finish(FinishReason::kCancelled, step.text);
  step.finish = finish_;
  return step;
}

std::optional<ForwardItem> Generation::NormaliseItem() {
  if (!pending_) return std::nullopt;
  ForwardItem item;
  item.sequence = &sequence_;
  item.tokens = std::span(emitted_).last(1);
  item.wanted = LogitsWanted::kLast;
  item.logits = std::span(logits_).first(vocab_);
  return item;
}

void Generation::AcceptNormalised() {
  pending_ = false;
  last_row_ = 0;
}

uint64_t Generation::SpeculationBytes(const SpeculationOptions& options, size_t vocab,
                                      size_t tokens) {
  return Speculator::MaxBytes(options, tokens) +
         uint64_t{options.longest()} * vocab * sizeof(float);
}

std::optional<size_t> Generation::stop_string() const {
  return output_ ? output_->matched_stop() : std::nullopt;
}

std::vector<int32_t> Generation::ClosingIds() const {
  return output_ ? output_->ClosingIds() : std::vector<int32_t>();
}

}  // namespace mk
