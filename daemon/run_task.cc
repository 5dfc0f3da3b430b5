#include "daemon/run_task.h"

#include <algorithm>
#include <utility>

#include "daemon/conversation.h"
#include "daemon/errors.h"
#include "daemon/run_sampling.h"
#include "daemon/speculation.h"
#include "daemon/stream_wish.h"
#include "engine/model/state.h"

namespace mk::daemon {
namespace {

// Longest timeline of a sequence, in tokens; memory is the real limit.
constexpr size_t kMaxContext = size_t{1} << 20;

// While hidden states or router picks are wanted, so many tokens are read per step: what they take
// is held until it is sent.
constexpr size_t kCapturedTokens = kPrefillBlock;
// While logits are wanted, a draft and what is before it have so many: all rows are sent at once.
constexpr size_t kShownRows = 8;

// A prompt that comes on top of what a state has read.
void PutOnTop(const RunState& base, bool chat, std::optional<int32_t> bos,
              std::vector<int32_t>& prompt) {
  if (bos && !prompt.empty() && prompt.front() == *bos) prompt.erase(prompt.begin());
  std::vector<int32_t> whole = base.tokens;
  if (chat) whole.insert(whole.end(), base.closing.begin(), base.closing.end());
  whole.insert(whole.end(), prompt.begin(), prompt.end());
  prompt = std::move(whole);
}

// Whether a run with this prompt can go on from a state.
bool Fits(const RunState& base, std::span<const int32_t> prompt) {
  const size_t read = base.tokens.size();
  return read <= prompt.size() && (read < prompt.size() || !base.logits.empty()) &&
         std::equal(base.tokens.begin(), base.tokens.end(), prompt.begin());
}

SharedState LongestThatFits(const std::vector<SharedState>& bases,
                            std::span<const int32_t> prompt) {
  SharedState best;
  for (const SharedState& base : bases) {
    if (best && base->tokens.size() <= best->tokens.size()) continue;
    if (Fits(*base, prompt)) best = base;
  }
  return best;
}

bool HasPrompt(const protocol::RunArgs& args) {
  return args.prompt || args.ids || args.messages;
}

Result<EncodedText> EncodeWith(const Tokenizer& tokenizer, RunTask::Plan& plan) {
  protocol::RunArgs& args = plan.args;
  if (!plan.chat && args.prompt) return tokenizer.EncodePrompt(*args.prompt);
  Result<std::vector<ChatMessage>> messages =
      args.messages ? Conversation(std::move(*args.messages))
                    : Result<std::vector<ChatMessage>>(SingleTurn(args.system, *args.prompt));
  if (!messages) return Fail(messages.error());
  return plan.chat ? tokenizer.RenderChat(*messages, plan.chat_options)
                   : RenderContinuousText(tokenizer, *messages);
}

// Token ids of the prompt that was given, and which ids end the answer.
protocol::Status EncodeGiven(RunTask::Plan& plan) {
  const Tokenizer* tokenizer = plan.loaded->tokenizer.get();
  if (tokenizer != nullptr) {
    const auto stops = plan.chat ? tokenizer->chat_stop_ids() : tokenizer->prompt_stop_ids();
    plan.stop_ids.assign(stops.begin(), stops.end());
  } else if (plan.loaded->model->info().end_of_msg >= 0) {
    plan.stop_ids = {plan.loaded->model->info().end_of_msg};
  }
  if (plan.args.ids) plan.prompt = std::move(*plan.args.ids);
  if (plan.args.ids || !HasPrompt(plan.args)) return {};
  if (tokenizer == nullptr) return protocol::Fail(NoTokenizer(*plan.loaded));
  auto encoded = EncodeWith(*tokenizer, plan);
  if (!encoded) return protocol::Fail(ToProtocol(encoded.error()));
  plan.prompt = std::move(encoded->ids);
  plan.unknown = encoded->unknown;
  plan.args.prompt.reset();
  plan.args.messages.reset();
  return {};
}

// The whole prompt, and the state that the run goes on from.
protocol::Status SettleStart(RunTask::Plan& plan, const RunStart& start) {
  const bool text = !plan.args.ids;
  const bool given = HasPrompt(plan.args);
  if (auto status = EncodeGiven(plan); !status) return status;
  plan.leave_state = start.leave_state;
  if (!start.append) {
    if (!given) {
      return protocol::Fail(protocol::ErrorCode::kBadRequest, "there is no prompt",
                            "give some text or ids");
    }
    plan.base = LongestThatFits(start.bases, plan.prompt);
    return {};
  }
  plan.base = start.bases.at(0);
  if (!given && plan.base->logits.empty()) {
    return protocol::Fail(protocol::ErrorCode::kBadRequest,
                          "the state that the run goes on from does not tell what comes next",
                          "give a prompt");
  }
  plan.on_top = plan.base->tokens.size();
  const auto& tokenizer = plan.loaded->tokenizer;
  const bool has_bos = text && tokenizer && tokenizer->specials().bos >= 0;
  PutOnTop(*plan.base, plan.chat && given,
           has_bos ? std::optional(tokenizer->specials().bos) : std::nullopt, plan.prompt);
  if (plan.prompt.size() == plan.base->tokens.size() && plan.base->logits.empty()) {
    return protocol::Fail(protocol::ErrorCode::kBadRequest, "the prompt has no tokens",
                          "give some text");
  }
  return {};
}

// What the sequence of a run may grow to. One that goes on from rows that are multiplied out for
// every head goes on with them, and they are larger than any other form.
uint64_t StateBytes(const Model& model, const RunState* base, uint64_t tokens) {
  constexpr uint64_t kPageTokens = 64;
  uint64_t bytes = model.state_bytes(tokens);
  if (base == nullptr) return bytes;
  auto keeper = KeeperOf(model);
  if (!keeper) return bytes;
  auto key = (*keeper)->KeyOf(*base->sequence);
  if (!key || !key->options.expanded_kv) return bytes;
  key->length = (tokens + kPageTokens - 1) / kPageTokens * kPageTokens;
  const auto sections = (*keeper)->Sections(*key);
  if (!sections) return bytes;
  uint64_t expanded = 0;
  for (const StateSection& section : *sections) expanded += section.bytes();
  return std::max(bytes, expanded);
}

std::vector<std::string> WarningsOf(const RunTask::Plan& plan) {
  if (plan.unknown == 0) return {};
  return {std::to_string(plan.unknown) +
          " tokens of the prompt stand for text that the vocabulary cannot spell"};
}

double Percentile(std::vector<int64_t> sorted, double share) {
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5);
  return static_cast<double>(sorted[index]) / 1000.0;
}

}  // namespace

protocol::Error NoTokenizer(const LoadedModel& loaded) {
  protocol::Error error = ToProtocol(loaded.tokenizer_error);
  error.message = "the model cannot be given text: " + error.message;
  if (error.hint.empty()) error.hint = "name a vocabulary with --vocab, or give token ids";
  return error;
}

size_t ContextLimit(const ModelInfo& info, size_t read) {
  const size_t most = kMaxContext + read;
  return info.max_tokens == 0 ? most : std::min(most, info.max_tokens);
}

protocol::Result<PreparedRun> PrepareRun(std::shared_ptr<const LoadedModel> loaded,
                                         Precision precision, protocol::RunArgs args,
                                         const RunStart& start) {
  const ModelInfo& info = loaded->model->info();
  RunTask::Plan plan;
  plan.chat = !args.ids && !args.raw;
  if (plan.chat) {
    auto options = ChatOptionsOf(args.dialect, args.thinking);
    if (!options) return protocol::Fail(options.error());
    plan.chat_options = *options;
  }
  plan.loaded = std::move(loaded);
  plan.precision = precision;
  plan.args = std::move(args);
  auto sampling = SettleSampling(plan.args, *plan.loaded);
  if (!sampling) return protocol::Fail(std::move(sampling.error()));
  plan.sampling = std::move(*sampling);
  if (auto good = CheckShadows(plan.args, *plan.loaded->model); !good) {
    return protocol::Fail(good.error());
  }
  if (auto good = RunLens::Check(info, plan.args); !good) return protocol::Fail(good.error());
  if (auto status = SettleStart(plan, start); !status) return protocol::Fail(status.error());

  PreparedRun run;
  run.prompt_tokens = plan.prompt.size();
  const uint64_t tokens = run.prompt_tokens + plan.args.max_new;
  const size_t limit = ContextLimit(info, plan.base ? plan.base->tokens.size() : 0);
  if (tokens > limit) {
    return protocol::Fail(protocol::ErrorCode::kContextOverflow,
                          std::to_string(run.prompt_tokens) + " prompt tokens and " +
                              std::to_string(plan.args.max_new) + " new ones exceed the limit of " +
                              std::to_string(limit) + " tokens",
                          "shorten the prompt or ask for fewer tokens");
  }
  // Beside the sequence's state: its row of logits, and what it leaves with them.
  run.state_bytes =
      StateBytes(*plan.loaded->model, plan.base.get(), tokens) + info.vocab * sizeof(float);
  run.state_bytes += RunLens::Bytes(info, plan.args);
  if (plan.leave_state) run.state_bytes += tokens * sizeof(int32_t);
  run.state_bytes += SpeculationBytes(*plan.loaded->model, plan.args, tokens);
  auto task = std::make_unique<RunTask>(std::move(plan));
  run.fetch = task->FetchPrefix();
  run.task = std::move(task);
  return run;
}

RunTask::RunTask(Plan plan) : plan_(std::move(plan)) {
  const protocol::RunArgs& args = plan_.args;
  if (args.want_hidden || args.want_routes) {
    capture_.emplace(model().info().layers, args.want_hidden, args.want_routes);
  }
  stream_before_ = model().stream_stats();
  looks_.emplace(*plan_.loaded, plan_.precision, args, capture_ ? &*capture_ : nullptr);
}

// Where states of prompts are kept; null: the run neither uses nor leaves any. What every token
// shows is only seen while it is read. A run that goes on from the state of another has read its
// tokens in other pieces than a prompt is read in.
PrefixShelf* RunTask::shelf() const {
  // A state that shadows had a part in is nobody else's.
  if (plan_.args.stream_fallback) return nullptr;
  if (!plan_.args.prefix_cache || capture_ || looks_->need_prompt() || plan_.base) return nullptr;
  return plan_.loaded->prefixes.get();
}

// What brings the beginning of the prompt from disk into memory; empty: nothing is to be read.
std::function<void()> RunTask::FetchPrefix() const {
  if (shelf() == nullptr || !shelf()->WantsFetch(kind(), plan_.prompt)) return {};
  return [loaded = plan_.loaded, kind = kind(), prompt = plan_.prompt] {
    loaded->prefixes->Fetch(kind, prompt);
  };
}

Status RunTask::Start() {
  auto known = MakeSequence();
  if (!known) return Fail(known.error());
  if (auto made = MakeGeneration(*known); !made) return made;
  wait_ = FindWait();
  plan_.base.reset();
  return {};
}

RunTask::~RunTask() {
  if (reading_) reading_->task = nullptr;
}

// For what another run reads at this time.
PrefixWait RunTask::FindWait() const {
  if (marks_.empty() || !shelf()->keeps()) return {};
  return shelf()->readers().FindWorthWaiting(kind(), generation_->prompt(),
                                             generation_->known_tokens());
}

const StepTask* RunTask::Awaits() {
  // Whoever gave up hands over: one of those who waited reads on, the others wait for that one.
  if (wait_.given_up()) {
    const size_t until = wait_.until;
    wait_ = FindWait();
    if (!wait_.reading) wait_.until = until;
  }
  return wait_.reading && !wait_.done() ? wait_.reading->task : nullptr;
}

// After a wait, from what was stored meanwhile.
Status RunTask::StartAgain() {
  plan_.prompt.assign(generation_->prompt().begin(), generation_->prompt().end());
  generation_.reset();
  sequence_.reset();
  auto known = MakeSequence();
  return known ? MakeGeneration(*known) : Fail(known.error());
}

// From now on others may wait for this one.
void RunTask::ShowReading() {
  if (marks_.empty()) return;
  reading_ = std::make_shared<PrefixReading>(
      PrefixReading{this, kind(), generation_->prompt(), sequence_->length(), &marks_});
  shelf()->readers().Add(reading_);
}

// Whoever else holds the base keeps it as it is.
Status RunTask::CopyBase() {
  const RunState& base = *plan_.base;
  auto copy = base.sequence->Clone();
  if (!copy) return Fail(copy.error());
  sequence_ = std::move(*copy);
  prefix_ = "live";
  if (plan_.prompt.size() == base.tokens.size()) base_closing_ = base.closing;
  return {};
}

// A copy of the longest known beginning of the prompt, or an empty sequence.
Result<KnownPrompt> RunTask::MakeSequence() {
  if (plan_.base) {
    if (Status copied = CopyBase(); !copied) return Fail(copied.error());
    return KnownPrompt{plan_.base->tokens.size(), plan_.base->logits};
  }
  KnownPrompt known;
  if (PrefixShelf* prefixes = shelf()) {
    auto found = prefixes->Find(kind(), plan_.prompt);
    sequence_ = std::move(found.state);
    known_logits_ = std::move(found.logits);
    known = {found.tokens, known_logits_};
    marks_ = prefixes->Marks(kind(), known.tokens, found.shared, plan_.prompt.size());
    std::reverse(marks_.begin(), marks_.end());
  }
  if (sequence_) {
    prefix_ = "checkpoint";
    return known;
  }
  SequenceOptions options;
  options.precision = plan_.precision;
  options.max_tokens = kAnyLength;
  options.chunked_prefill = plan_.args.chunked_prefill;
  auto sequence = model().NewSequence(options);
  if (!sequence) return Fail(sequence.error());
  sequence_ = std::move(*sequence);
  return known;
}

Status RunTask::MakeGeneration(const KnownPrompt& known) {
  GenerationOptions generation;
  generation.sampling = plan_.sampling;
  generation.max_new = plan_.args.max_new;
  generation.context_limit = ContextLimit(model().info(), known.tokens);
  generation.stop_ids = plan_.stop_ids;
  generation.stops = plan_.args.stop;
  generation.speculation = SpeculationOf(plan_.args);
  if (const auto& costs = plan_.loaded->pass_costs; !costs.empty()) {
    generation.pass_costs = costs[static_cast<size_t>(plan_.precision)];
  }
  std::unique_ptr<ChannelParser> channels;
  const auto& tokenizer = plan_.loaded->tokenizer;
  if (plan_.chat) channels = tokenizer->NewChannelParser(plan_.chat_options);
  auto made = Generation::Create(*sequence_, model().info().vocab, std::move(plan_.prompt),
                                 std::move(generation), tokenizer, std::move(channels), known);
  if (!made) return Fail(made.error());
  generation_ = std::move(*made);
  return {};
}

Result<StepOutcome> RunTask::Begin() {
  StepOutcome outcome;
  if (wait_.until > 0) {
    if (auto started = StartAgain(); !started) return Fail(started.error());
  }
  wait_ = {};
  ShowReading();
  outcome.known = generation_->known_tokens();
  auto step = generation_->Begin();
  if (!step) return Fail(step.error());
  if (prefilling()) return outcome;
  ShowStep(*step, outcome);
  Settle(outcome);
  return outcome;
}

Result<ForwardItem> RunTask::NextItem(size_t max_tokens) {
  // A piece of the prompt ends at the next place that is to be stored.
  if (!marks_.empty()) max_tokens = std::min(max_tokens, marks_.back() - sequence_->length());
  if (capture_ || looks_->hold_rows()) max_tokens = std::min(max_tokens, kCapturedTokens);
  if (!prefilling() && plan_.args.want_logits) max_tokens = std::min(max_tokens, kShownRows);
  std::optional<ForwardItem> item;
  if (normalising_) {
    item = generation_->NormaliseItem();
  } else {
    item = generation_->NextItem(prefilling() ? std::max(max_tokens, kPrefillBlock) : max_tokens);
  }
  if (!item || item->tokens.empty()) {
    return Fail(ErrorCode::kInternal, "a request without a next token was scheduled");
  }
  if (capture_) {
    const ModelInfo& info = model().info();
    capture_->Begin(sequence_->length(), item->tokens.size(), info.hidden * info.streams);
  }
  const size_t end = sequence_->length() + item->tokens.size();
  if (plan_.args.stream_fallback) item->experts = ExpertAccess::kShadow;
  item_tokens_ = item->tokens.size();
  looks_->Begin({sequence_->length(), item->tokens.size(), prefilling(),
                 prefilling() && end == generation_->prompt_tokens()});
  return *item;
}

// A guess that is verified may take what it likes.
void RunTask::Shadowed(uint64_t /*picks*/) {
  if (plan_.args.stream_fallback) shadow_tokens_ += item_tokens_;
}

Result<StepOutcome> RunTask::Accept() {
  StepOutcome outcome;
  const bool was_prefilling = prefilling();
  if (normalising_) {
    generation_->AcceptNormalised();
    GenerationStep last;
    last.rows = 1;
    ShowStep(last, outcome);
  } else {
    auto step = generation_->Accept();
    if (!step) return Fail(step.error());
    if (was_prefilling) StorePrefix();
    if (reading_) reading_->position = generation_->ingested_tokens();
    if (reading_ && !prefilling()) reading_->task = nullptr;
    ShowStep(*step, outcome);
    outcome.drafted = step->drafted;
    outcome.accepted = step->drafted > 0 ? step->rows - 1 : 0;
  }
  if (was_prefilling && prefilling()) {
    outcome.messages.emplace_back(protocol::Progress{"prefill", generation_->ingested_tokens(),
                                                     generation_->prompt_tokens(), "tokens"});
  }
  Settle(outcome);
  return outcome;
}

Status RunTask::Examine(Executor& executor, StepOutcome& outcome) {
  Status examined = looks_->Examine(
      executor, sequence_->length(), generation_->prompt_tokens(),
      [this](size_t position) { return TokenAt(position); }, outcome.messages);
  if (outcome.done) looks_->AddTo(std::get<protocol::RunDone>(*outcome.done));
  return examined;
}

// Of the prompt, of the answer, or the stop token after it.
std::optional<int32_t> RunTask::TokenAt(size_t position) const {
  const auto prompt = generation_->prompt();
  const auto emitted = generation_->emitted();
  if (position < prompt.size()) return prompt[position];
  if (position < prompt.size() + emitted.size()) return emitted[position - prompt.size()];
  return generation_->stop_id();
}

// The last token has not been read yet when the prompt has just ended.
void RunTask::StorePrefix() {
  if (marks_.empty() || sequence_->length() != marks_.back()) return;
  marks_.pop_back();
  const std::span<const float> logits =
      prefilling() ? std::span<const float>() : generation_->logits();
  shelf()->Store(kind(), generation_->prompt().first(sequence_->length()), *sequence_, logits);
}

// Position by position, as if each had had a step of its own: what was captured of its token, the
// token that was picked after it, and the logits.
void RunTask::ShowStep(const GenerationStep& step, StepOutcome& outcome) {
  const size_t length = sequence_->length();
  const size_t first = length - std::min(length, step.rows);
  const size_t index = generation_->emitted().size() - step.tokens.size();
  if (capture_) capture_->Take(first, outcome.messages);
  for (size_t i = 0; i < step.rows; ++i) {
    const auto logits = generation_->row(i);
    if (capture_) capture_->Take(first + i + 1, outcome.messages);
    if (i < step.tokens.size()) {
      TakeText(step.tokens[i].text);
      if (plan_.args.stats) token_times_.push_back(NowMicroseconds());
      outcome.messages.emplace_back(NextChunk(step.tokens[i], index + i, logits));
    }
    if (plan_.args.want_logits) AppendRow("logits", first + i, logits, outcome.messages);
  }
  TakeText(step.text);
}

// The end, if this step was the last.
void RunTask::Settle(StepOutcome& outcome) {
  if (!generation_->finished()) return;
  if (!normalising_ && WantsLastToken()) {
    normalising_ = true;
  } else {
    outcome.done = Done();
  }
}

// Whether the last token must still be read because its tensors or the state are wanted.
bool RunTask::WantsLastToken() const {
  return (capture_ || looks_->need_answer() || plan_.args.want_logits || plan_.leave_state) &&
         generation_->NormaliseItem().has_value();
}

void RunTask::TakeText(const std::vector<TextPiece>& pieces) {
  for (const TextPiece& piece : pieces) {
    if (piece.channel == Channel::kAnswer) answer_ += piece.text;
    if (piece.channel == Channel::kReasoning) reasoning_ += piece.text;
    if (!untold_.empty() && untold_.back().channel == piece.channel) {
      untold_.back().text += piece.text;
    } else {
      untold_.push_back(piece);
    }
  }
}

// The chunk of a token carries text of one channel; what comes from another one waits for the next.
protocol::TokenChunk RunTask::NextChunk(const EmittedToken& token, size_t index,
                                        std::span<const float> logits) {
  protocol::TokenChunk chunk;
  chunk.index = static_cast<uint32_t>(index);
  chunk.id = token.id;
  Channel channel = token.channel;
  if (!untold_.empty()) {
    channel = untold_.front().channel;
    chunk.text = std::move(untold_.front().text);
    untold_.pop_front();
  }
  if (plan_.chat) chunk.channel = ChannelName(channel);
  if (plan_.args.logprobs) {
    AddLogProbs(logits, *plan_.args.logprobs, plan_.loaded->tokenizer.get(), chunk);
  }
  return chunk;
}

// Nothing more is shown. Of a prompt that has not been read to its end there is no state.
std::optional<protocol::Body> RunTask::Cancelled() {
  TakeText(generation_->Cancel().text);
  looks_->Stop();
  capture_.reset();
  plan_.args.want_logits = false;
  normalising_ = !prefilling() && WantsLastToken();
  if (normalising_) return std::nullopt;
  return Done();
}

// After an error the sequence may be half-way between two states, or behind what was emitted.
SharedState RunTask::Leave(Reservation& memory) {
  const bool whole = plan_.leave_state && generation_ && generation_->finished() && !prefilling() &&
                     !generation_->NormaliseItem();
  if (!whole || !sequence_->EndDraft()) return nullptr;
  RunState state;
  const auto prompt = generation_->prompt();
  const auto emitted = generation_->emitted();
  const auto logits = generation_->logits();
  state.tokens.reserve(prompt.size() + emitted.size());
  state.tokens.assign(prompt.begin(), prompt.end());
  state.tokens.insert(state.tokens.end(), emitted.begin(), emitted.end());
  state.logits.assign(logits.begin(), logits.end());
  state.closing = ClosingIds();
  generation_.reset();
  state.sequence = std::move(sequence_);
  return Share(std::move(state), plan_.loaded, std::move(memory));
}

// Text that goes on without a prompt goes on inside of what was there.
std::vector<int32_t> RunTask::ClosingIds() const {
  return plan_.chat ? generation_->ClosingIds() : base_closing_;
}

protocol::RunDone RunTask::Done() const {
  const protocol::RunArgs& args = plan_.args;
  protocol::RunDone done;
  done.finish_reason = FinishReasonName(generation_->finish_reason());
  done.text = answer_;
  done.reasoning = reasoning_;
  for (const TextPiece& piece : untold_) {
    if (piece.channel == Channel::kAnswer) done.rest += piece.text;
  }
  const auto prompt = generation_->prompt().subspan(plan_.on_top);
  done.prompt_ids.assign(prompt.begin(), prompt.end());
  done.ids.assign(generation_->emitted().begin(), generation_->emitted().end());
  done.usage = {generation_->prompt_tokens(), generation_->emitted().size(), plan_.unknown,
                generation_->known_tokens()};
  done.prefix = prefix_;
  AddTokenTimes(done.timing);
  if (const auto* stats = generation_->speculation()) done.speculation = ReportOf(*stats);
  done.stream = StreamUseSince(stream_before_, model());
  looks_->AddTo(done);

  protocol::RunOptions& options = done.options;
  options.raw = args.raw;
  options.thinking = args.thinking;
  if (plan_.chat) {
    const auto usual = plan_.loaded->tokenizer->default_dialect();
    options.dialect = ChatDialectName(plan_.chat_options.dialect.value_or(*usual));
  }
  options.max_new = args.max_new;
  TellSampling(args, options);
  options.spec = args.spec;
  options.spec_rosa = args.spec_rosa;
  options.precision = PrecisionName(plan_.precision);
  options.chunked_prefill = args.chunked_prefill;
  options.stop = args.stop;
  options.timeout_ms = args.timeout_ms;

  done.trust.degraded = shadow_tokens_ > 0;
  done.trust.shadow_tokens = shadow_tokens_;
  done.trust.precision = options.precision;
  done.trust.fingerprint = model().info().fingerprint;
  done.trust.model_path = model().info().path;
  done.trust.build_id = protocol::BuildId();
  done.warnings = WarningsOf(plan_);
  return done;
}

void RunTask::AddTokenTimes(protocol::Timing& timing) const {
  if (token_times_.size() < 2) return;
  std::vector<int64_t> steps;
  for (size_t i = 1; i < token_times_.size(); ++i) {
    steps.push_back(token_times_[i] - token_times_[i - 1]);
  }
  std::sort(steps.begin(), steps.end());
  timing.token_p50_ms = Percentile(steps, 0.50);
  timing.token_p95_ms = Percentile(steps, 0.95);
}

}  // namespace mk::daemon
