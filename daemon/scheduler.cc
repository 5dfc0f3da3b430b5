#include "daemon/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "engine/model/executor.h"

namespace mk::daemon {
namespace {

// Passes what a batch shows on to the tasks that asked, each as item 0 of its own.
class FanOut : public ForwardObserver {
 public:
  explicit FanOut(std::span<ForwardObserver* const> observers) : observers_(observers) {}

  void OnAttention(size_t item, size_t position, size_t layer,
                   std::span<const float> rows) override {
    if (auto* to = observers_[item]) to->OnAttention(0, position, layer, rows);
  }
  void OnFeedForward(size_t item, size_t position, size_t layer,
                     std::span<const float> rows) override {
    if (auto* to = observers_[item]) to->OnFeedForward(0, position, layer, rows);
  }
  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float> rows) override {
    if (auto* to = observers_[item]) to->OnHidden(0, position, layer, rows);
  }
  bool WantsOutput(size_t item) const override {
    return observers_[item] != nullptr && observers_[item]->WantsOutput(0);
  }
  void OnOutput(size_t item, size_t position, std::span<const float> rows) override {
    if (auto* to = observers_[item]) to->OnOutput(0, position, rows);
  }
  void OnRouter(size_t item, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override {
    if (auto* to = observers_[item]) to->OnRouter(0, position, layer, experts, weights);
  }
  void OnCompressed(size_t item, size_t position, size_t layer, size_t row,
                    std::span<const float> values) override {
    if (auto* to = observers_[item]) to->OnCompressed(0, position, layer, row, values);
  }
  void OnIndexer(size_t item, size_t position, size_t layer, std::span<const int32_t> rows,
                 std::span<const float> scores) override {
    if (auto* to = observers_[item]) to->OnIndexer(0, position, layer, rows, scores);
  }

 private:
  std::span<ForwardObserver* const> observers_;
};

}  // namespace

size_t MessageCost(const protocol::Body& message) {
  constexpr size_t kEnvelope = 64;
  if (const auto* token = std::get_if<protocol::TokenChunk>(&message)) {
    size_t bytes = token->text.size();
    if (token->top) {
      for (const auto& one : *token->top) bytes += 32 + one.text.size();
    }
    return kEnvelope + bytes;
  }
  if (const auto* tensor = std::get_if<protocol::TensorChunk>(&message)) {
    return kEnvelope + tensor->data.size();
  }
  if (const auto* routes = std::get_if<protocol::RoutesChunk>(&message)) {
    size_t picks = 0;
    for (const auto& layer : routes->layers) picks += layer.experts.size();
    for (const auto& layer : routes->indexed) picks += layer.rows.size();
    picks += routes->compressed.size();
    return kEnvelope + picks * 12;
  }
  if (const auto* score = std::get_if<protocol::ScoreChunk>(&message)) {
    size_t bytes = 0;
    for (const std::string& piece : score->pieces) bytes += piece.size();
    return kEnvelope + bytes + score->ids.size() * 20;
  }
  if (const auto* stats = std::get_if<protocol::HiddenStatsChunk>(&message)) {
    return kEnvelope + stats->layers.size() * 32;
  }
  if (const auto* lens = std::get_if<protocol::LensChunk>(&message)) {
    size_t tokens = 0;
    for (const auto& layer : lens->layers) tokens += layer.ids.size() + 2;
    return kEnvelope + tokens * 24;
  }
  return kEnvelope;
}

void Scheduler::Batch::Clear() {
  items.clear();
  entries.clear();
  prefill_tokens = 0;
  decoding = 0;
  observed = false;
}

Scheduler::Scheduler(Executor& executor, Metrics& metrics, Ledger& ledger, SchedulerSink sink,
                     const SchedulerLimits& limits)
    : executor_(executor),
      metrics_(metrics),
      ledger_(ledger),
      sink_(std::move(sink)),
      limits_(limits),
      max_batch_(limits.max_batch),
      max_active_(limits.max_active),
      submissions_(limits.max_waiting),
      thread_([this] { Run(); }) {}

Scheduler::~Scheduler() {
  Stop();
}

bool Scheduler::Submit(Submission submission) {
  return submissions_.TryPush(std::move(submission));
}

uint64_t Scheduler::heartbeat() const {
  return beats_.load(std::memory_order_relaxed) + executor_.pool().progress();
}

void Scheduler::Stop() {
  stopping_.store(true);
  submissions_.Close();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::Run() {
  pthread_setname_np(pthread_self(), "scheduler");
  while (!stopping_.load()) {
    beats_.fetch_add(1, std::memory_order_relaxed);
    submissions_.event().Clear();
    TakeSubmissions();
    EndCancelledAndLate();
    if (room_was_made_.exchange(false)) AskForRoomAgain();
    Activate();
    const bool began = BeginWaiting();
    const bool worked = StepAll();
    RemoveEnded();
    if (!worked && !began) submissions_.event().Wait(WaitMilliseconds());
  }
  TakeSubmissions();
  for (auto& entry : entries_) {
    Finish(*entry, Fail(Error{ErrorCode::kCancelled, "the daemon is shutting down", {}}));
  }
  RemoveEnded();
}

void Scheduler::TakeSubmissions() {
  while (auto submission = submissions_.TryPop()) {
    auto entry = std::make_unique<Entry>();
    entry->request = std::move(*submission);
    entries_.push_back(std::move(entry));
  }
}

void Scheduler::EndCancelledAndLate() {
  for (auto& entry : entries_) {
    if (entry->alone || entry->ending) continue;  // sees for itself, or has been told
    const auto& deadline = entry->request.deadline;
    if (entry->request.control->cancelled.load()) {
      EndEarly(*entry);
    } else if (deadline && Clock::now() >= *deadline) {
      entry->late = true;
      EndEarly(*entry);
    }
  }
  RemoveEnded();
}

// A task that leaves its state may need one more forward pass for it.
void Scheduler::EndEarly(Entry& entry) {
  if (!entry.started) return Finish(entry, Fail(ErrorCode::kCancelled, "cancelled"));
  auto last = entry.request.task->Cancelled();
  if (last) return Finish(entry, std::move(*last));
  entry.ending = true;
}

// Starts waiting requests, fairly, while there is room. The first that does not fit into memory
// holds up those behind it, so that a large request is not passed over for ever.
void Scheduler::Activate() {
  while (started_ < max_active_.load()) {
    if (Entry* alone = FindExclusive()) {
      if (started_ > 0 || !RunExclusive(*alone)) return;
      continue;
    }
    Entry* next = NextToStart();
    if (next == nullptr) return;
    Entry& entry = *next;
    const bool background = entry.background();
    if (!ReserveFor(entry)) {
      without_room_[background] = entry.request.key;
      return;
    }
    without_room_[background] = 0;
    if (auto status = entry.request.task->Start(); !status) {
      Finish(entry, Fail(status.error()));
      continue;
    }
    entry.started = true;
    ++started_;
    if (background) {
      ++started_background_;
      passed_over_ = 0;
    } else {
      ++passed_over_;
    }
    RequestControl& control = *entry.request.control;
    control.state_bytes.store(entry.request.state_bytes);
    control.started_us.store(NowMicroseconds());
    control.phase.store(RequestControl::kPrefill);
    sink_({entry.request.key, RequestStarted{}});
    if (!Waits(entry)) {
      Begin(entry);
    } else {
      metrics_.Add(Counter::kPrefixWaits);
    }
  }
}

// Whether another one reads what the task would read. Not one that cannot run now, nor one of the
// background, unless the task is: it may take its time.
bool Scheduler::Waits(Entry& entry) const {
  const StepTask* other = entry.request.task->Awaits();
  if (other == nullptr) return false;
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& one) {
    return one->request.task.get() == other && one->begun && !one->ended && WindowOpen(*one) &&
           (!one->background() || entry.background());
  });
}

// Those whose wait is over. False: there are none.
bool Scheduler::BeginWaiting() {
  bool began = false;
  for (auto& entry : entries_) {
    if (!entry->started || entry->begun || entry->ended || Waits(*entry)) continue;
    Begin(*entry);
    began = true;
  }
  return began;
}

// What a task has to say before its first step: the first token, when its prompt was known.
void Scheduler::Begin(Entry& entry) {
  entry.begun = true;
  auto outcome = entry.request.task->Begin();
  if (!outcome) return Finish(entry, Fail(outcome.error()));
  entry.request.control->prompt_done += outcome->known;
  metrics_.Add(Counter::kCachedTokens, outcome->known);
  Deliver(entry, std::move(*outcome));
}

// Null when nobody waits who may start.
Scheduler::Entry* Scheduler::NextToStart() {
  std::array<size_t, 2> waiting{};
  for (const auto& entry : entries_) {
    if (!entry->started && !entry->ended) ++waiting[entry->background()];
  }
  const size_t most = max_active_.load();
  if (started_background_ >= most - most / 4) waiting[1] = 0;
  if (waiting[1] == 0) passed_over_ = 0;
  const bool background = waiting[0] == 0 || passed_over_ >= kBackgroundEvery - 1;
  if (waiting[background] == 0) return nullptr;
  candidates_.clear();
  candidate_clients_.clear();
  for (auto& entry : entries_) {
    if (entry->started || entry->ended || entry->background() != background) continue;
    if (entry->request.key == without_room_[background]) return entry.get();
    candidates_.push_back(entry.get());
    candidate_clients_.push_back(entry->request.client);
  }
  return candidates_[activation_pickers_[background].Pick(candidate_clients_, 1).front()];
}

// False: there is no room now. Whoever owns the models has been told, once.
bool Scheduler::ReserveFor(Entry& entry) {
  const uint64_t wanted = entry.request.state_bytes;
  const uint64_t more = wanted - std::min(wanted, entry.request.held.bytes());
  auto memory = ledger_.Reserve(MemoryUse::kSequences, more);
  if (memory) {
    entry.memory = std::move(entry.request.held);
    entry.memory.Add(std::move(*memory));
    return true;
  }
  if (!entry.request.control->needs_room.exchange(true)) {
    sink_({entry.request.key, RequestNeedsRoom{more, started_ > 0}});
  }
  return false;
}

void Scheduler::AskForRoomAgain() {
  for (const auto& entry : entries_) entry->request.control->needs_room.store(false);
}

Scheduler::Entry* Scheduler::FindExclusive() {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [](const auto& entry) {
    return entry->request.work && !entry->ended;
  });
  return found == entries_.end() ? nullptr : found->get();
}

// False: there is no room for it.
bool Scheduler::RunExclusive(Entry& entry) {
  if (!ReserveFor(entry)) return false;
  RequestControl& control = *entry.request.control;
  control.state_bytes.store(entry.request.state_bytes);
  control.started_us.store(NowMicroseconds());
  control.phase.store(RequestControl::kAlone);
  sink_({entry.request.key, RequestStarted{}});
  entry.alone = true;
  const auto& deadline = entry.request.deadline;
  auto attended = Clock::now();
  Result<protocol::Body> result = entry.request.work(executor_, [&] {
    beats_.fetch_add(1, std::memory_order_relaxed);
    AttendWaiting(attended);
    return !stopping_.load() && !control.cancelled.load() &&
           (!deadline || Clock::now() < *deadline);
  });
  entry.late = !result && deadline && Clock::now() >= *deadline;
  Finish(entry, std::move(result));
  return true;
}

// Those who wait for exclusive work may be cancelled and have deadlines meanwhile.
void Scheduler::AttendWaiting(Clock::time_point& attended) {
  constexpr auto kInterval = std::chrono::milliseconds(50);
  const auto now = Clock::now();
  if (now - attended < kInterval) return;
  attended = now;
  TakeSubmissions();
  EndCancelledAndLate();
}

// One forward pass for every model that has something to do. False: nothing to do.
bool Scheduler::StepAll() {
  bool worked = false;
  ShareSteps();
  models_.clear();
  for (const auto& entry : entries_) {
    if (!entry->begun || entry->ended) continue;
    const Model* model = &entry->request.task->model();
    if (std::find(models_.begin(), models_.end(), model) == models_.end()) {
      models_.push_back(model);
    }
  }
  for (const Model* model : models_) {
    BuildBatch(*model);
    if (batch_.items.empty()) continue;
    worked = true;
    const auto begin = Clock::now();
    RunBatch(*model);
    CountExperts();
    const auto took = Clock::now() - begin;
    if (batch_.prefill_tokens > 0) {
      // Decoding rows in the batch make this an upper estimate: chunks get smaller, never larger.
      const double now =
          std::chrono::duration<double>(took).count() / static_cast<double>(batch_.prefill_tokens);
      seconds_per_prefill_token_ =
          seconds_per_prefill_token_ == 0 ? now : 0.7 * seconds_per_prefill_token_ + 0.3 * now;
    }
    CountStep(took);
  }
  return worked;
}

void Scheduler::CountExperts() {
  const ExpertUse& use = executor_.expert_use();
  const uint64_t reads = use.reads - counted_experts_.reads;
  const uint64_t alone = use.reads_alone - counted_experts_.reads_alone;
  metrics_.Add(Counter::kExpertPicks, use.picks - counted_experts_.picks);
  metrics_.Add(Counter::kExpertReads, reads);
  metrics_.Add(Counter::kExpertReadsSaved, alone > reads ? alone - reads : 0);
  counted_experts_ = use;
}

void Scheduler::CountStep(Clock::duration took) {
  Distribution kind = Distribution::kDecodeStep;
  if (batch_.prefill_tokens > 0) {
    kind = batch_.decoding > 0 ? Distribution::kMixedStep : Distribution::kPrefillStep;
    metrics_.Observe(Distribution::kPrefillBatch, batch_.prefill_tokens);
  }
  if (batch_.decoding > 0) metrics_.Observe(Distribution::kDecodeBatch, batch_.decoding);
  metrics_.Observe(kind, took);
}

// Settles what the background may have of the next step.
void Scheduler::ShareSteps() {
  interactive_runs_ = false;
  for (const auto& entry : entries_) {
    if (!entry->begun || entry->ended || entry->background()) continue;
    if (MayRunAhead(*entry)) interactive_runs_ = true;
  }
  interactive_steps_ = interactive_runs_ ? interactive_steps_ + 1 : 0;
  background_turn_ = interactive_runs_ && interactive_steps_ % kBackgroundEvery == 0;
}

void Scheduler::BuildBatch(const Model& model) {
  batch_.Clear();
  PickDecoding(model);
  PickPrefill(model);
}

// Those who could take part in the next step; false when there are none.
bool Scheduler::FindCandidates(const Model& model, Stage stage, bool background) {
  candidates_.clear();
  candidate_clients_.clear();
  for (auto& entry : entries_) {
    if (!entry->begun || entry->ended || entry->background() != background) continue;
    const StepTask& task = *entry->request.task;
    if (&task.model() != &model || task.prefilling() != (stage == Stage::kPrefill)) continue;
    if (!MayRunAhead(*entry)) continue;
    candidates_.push_back(entry.get());
    candidate_clients_.push_back(entry->request.client);
  }
  return !candidates_.empty();
}

void Scheduler::PickDecoding(const Model& model) {
  size_t places = max_batch_.load();
  const bool kept = background_turn_ && FindCandidates(model, Stage::kDecode, true);
  if (FindCandidates(model, Stage::kDecode, false)) {
    for (const size_t i : decode_pickers_[0].Pick(candidate_clients_, places - (kept ? 1 : 0))) {
      AddDecoding(*candidates_[i]);
    }
  }
  // Beside interactive rows the others cost little; a step of their own, or one that keeps a prompt
  // from being read in large pieces, costs much.
  if (interactive_runs_ && !background_turn_ && batch_.items.empty()) return;
  places -= std::min(places, batch_.items.size());
  if (places == 0 || !FindCandidates(model, Stage::kDecode, true)) return;
  for (const size_t i : decode_pickers_[1].Pick(candidate_clients_, places)) {
    AddDecoding(*candidates_[i]);
  }
}

void Scheduler::PickPrefill(const Model& model) {
  if (background_turn_ && FindCandidates(model, Stage::kPrefill, true)) {
    return AddPrefill(prefill_pickers_[1], kPrefillBlock);
  }
  if (FindCandidates(model, Stage::kPrefill, false)) {
    return AddPrefill(prefill_pickers_[0], PrefillBudget());
  }
  if (!interactive_runs_ && FindCandidates(model, Stage::kPrefill, true)) {
    AddPrefill(prefill_pickers_[1], PrefillBudget());
  }
}

// So many tokens of the candidates' prompts.
void Scheduler::AddPrefill(FairPicker& picker, size_t budget) {
  const auto picked = picker.Pick(candidate_clients_, budget / kPrefillBlock);
  const size_t share = budget / kPrefillBlock / picked.size() * kPrefillBlock;
  for (const size_t i : picked) AddToBatch(*candidates_[i], share);
}

// Tokens of prompts in this step: one block beside decoding requests, else as many blocks as fit
// into the time that a step should take.
size_t Scheduler::PrefillBudget() const {
  if (!batch_.items.empty()) return kPrefillBlock;
  const size_t most = kMaxForwardTokens / kPrefillBlock;
  // The first chunk of a daemon's life measures the machine.
  if (seconds_per_prefill_token_ == 0) return kPrefillBlock;
  const double target = std::chrono::duration<double>(limits_.prefill_target).count();
  const double blocks = target / (seconds_per_prefill_token_ * static_cast<double>(kPrefillBlock));
  return static_cast<size_t>(std::clamp(blocks, 1.0, static_cast<double>(most))) * kPrefillBlock;
}

// Those who guess share what a forward pass can carry beside a chunk of a prompt, and do not run
// further ahead of their clients than the others.
void Scheduler::AddDecoding(Entry& entry) {
  constexpr size_t kRoom = kMaxForwardTokens - kPrefillBlock;
  const RequestControl& control = *entry.request.control;
  const uint64_t window = control.acked_messages.load() + control.window.load();
  const uint64_t open = window - std::min(window, entry.sent_messages);
  const size_t share = std::min<uint64_t>(kRoom / std::max<size_t>(max_batch_.load(), 1), open);
  AddToBatch(entry, std::max<size_t>(share, 1));
}

void Scheduler::AddToBatch(Entry& entry, size_t max_tokens) {
  const bool prefilling = entry.request.task->prefilling();
  auto item = entry.request.task->NextItem(max_tokens);
  if (!item) return Finish(entry, Fail(item.error()));
  if (prefilling) {
    batch_.prefill_tokens += item->tokens.size();
  } else {
    ++batch_.decoding;
  }
  if (entry.request.task->observer() != nullptr) batch_.observed = true;
  batch_.items.push_back(*item);
  batch_.entries.push_back(&entry);
}

void Scheduler::RunBatch(const Model& model) {
  auto status = Forward(model, batch_.items, batch_.entries);
  if (status) return AcceptAll();
  const ErrorCode code = status.error().code;
  if (code == ErrorCode::kInvalidArgument || code == ErrorCode::kContextOverflow) {
    // No sequence was touched: one item is at fault, the others shall not suffer for it.
    return RunOneByOne(model);
  }
  for (Entry* entry : batch_.entries) Finish(*entry, Fail(status.error()));
}

void Scheduler::RunOneByOne(const Model& model) {
  for (size_t i = 0; i < batch_.items.size(); ++i) {
    auto status = Forward(model, std::span(batch_.items).subspan(i, 1),
                          std::span<Entry* const>(batch_.entries).subspan(i, 1));
    if (status) {
      AcceptOne(*batch_.entries[i]);
    } else {
      Finish(*batch_.entries[i], Fail(status.error()));
    }
  }
}

// Tells those who decode by themselves how long it took.
Status Scheduler::Forward(const Model& model, std::span<ForwardItem> items,
                          std::span<Entry* const> entries) {
  const auto begin = Clock::now();
  Status status = RunItems(model, items, entries);
  if (!status || batch_.prefill_tokens > 0) return status;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  size_t rows = 0;
  for (const ForwardItem& item : items) rows += item.tokens.size();
  for (Entry* entry : entries) entry->request.task->Took(rows, seconds);
  return status;
}

Status Scheduler::RunItems(const Model& model, std::span<ForwardItem> items,
                           std::span<Entry* const> entries) {
  metrics_.Add(Counter::kForwards);
  if (!batch_.observed) return model.Forward(executor_, items, nullptr);
  std::vector<ForwardObserver*> observers;
  observers.reserve(entries.size());
  for (Entry* entry : entries) observers.push_back(entry->request.task->observer());
  FanOut fan_out(observers);
  return model.Forward(executor_, items, &fan_out);
}

void Scheduler::AcceptAll() {
  for (Entry* entry : batch_.entries) AcceptOne(*entry);
}

void Scheduler::AcceptOne(Entry& entry) {
  const size_t i = static_cast<size_t>(
      std::find(batch_.entries.begin(), batch_.entries.end(), &entry) - batch_.entries.begin());
  const size_t tokens = batch_.items[i].tokens.size();
  RequestControl& control = *entry.request.control;
  if (control.phase.load() == RequestControl::kPrefill) {
    control.prompt_done += tokens;
    metrics_.Add(Counter::kPrefillTokens, tokens);
  }
  if (const uint64_t picks = batch_.items[i].shadowed; picks > 0) {
    entry.request.task->Shadowed(picks);
  }
  auto outcome = entry.request.task->Accept();
  if (!outcome) return Finish(entry, Fail(outcome.error()));
  if (outcome->drafted > 0) {
    metrics_.Add(Counter::kDraftPasses);
    metrics_.Add(Counter::kDraftedTokens, outcome->drafted);
    metrics_.Add(Counter::kAcceptedTokens, outcome->accepted);
  }
  if (Status looked = entry.request.task->Examine(executor_, *outcome); !looked) {
    return Finish(entry, Fail(looked.error()));
  }
  Deliver(entry, std::move(*outcome));
}

void Scheduler::Deliver(Entry& entry, StepOutcome outcome) {
  if (!entry.request.task->prefilling()) {
    entry.request.control->phase.store(RequestControl::kDecode);
  }
  for (auto& message : outcome.messages) Send(entry, std::move(message));
  if (outcome.done) Finish(entry, std::move(*outcome.done));
}

void Scheduler::Send(Entry& entry, protocol::Body message) {
  RequestControl& control = *entry.request.control;
  if (std::holds_alternative<protocol::TokenChunk>(message)) {
    metrics_.Add(Counter::kGeneratedTokens);
    const int64_t now = NowMicroseconds();
    if (control.generated.fetch_add(1) == 0) {
      control.first_token_us.store(now);
    } else {
      metrics_.Observe(Distribution::kTokenTime,
                       std::chrono::microseconds(now - control.last_token_us.load()));
    }
    control.last_token_us.store(now);
  }
  ++entry.sent_messages;
  entry.sent_bytes += MessageCost(message);
  sink_({entry.request.key, std::move(message)});
}

void Scheduler::Finish(Entry& entry, Result<protocol::Body> result) {
  if (entry.ended) return;
  entry.ended = true;
  entry.request.control->phase.store(RequestControl::kEnded);
  SharedState left;
  if (entry.started && entry.request.task) left = entry.request.task->Leave(entry.memory);
  // The sequence goes before its reservation does, and both before the client hears of the end.
  entry.request.task.reset();
  entry.request.work = nullptr;
  entry.memory.Release();
  entry.request.held.Release();
  AskForRoomAgain();
  if (entry.started) {
    --started_;
    if (entry.background()) --started_background_;
  }
  entry.started = false;
  if (entry.late) {
    result = Fail(Error{ErrorCode::kCancelled, "the request's time is up",
                        "raise --timeout or ask for fewer tokens"});
  }
  sink_({entry.request.key, RequestFinished{std::move(result), entry.late, std::move(left)}});
}

void Scheduler::RemoveEnded() {
  std::erase_if(entries_, [](const auto& entry) { return entry->ended; });
}

bool Scheduler::WindowOpen(const Entry& entry) const {
  const RequestControl& control = *entry.request.control;
  return entry.sent_messages < control.acked_messages.load() + control.window.load() &&
         entry.sent_bytes < control.acked_bytes.load() + limits_.window_bytes;
}

// Whether the next step may have it; notes when its client has to catch up first.
bool Scheduler::MayRunAhead(Entry& entry) {
  const bool open = entry.ending || WindowOpen(entry);
  std::atomic<bool>& paused = entry.request.control->paused;
  if (open == paused.load()) {
    paused.store(!open);
    if (!open) metrics_.Add(Counter::kOutboxPauses);
  }
  return open;
}

// How long to sleep when nothing can run: until the next deadline.
int Scheduler::WaitMilliseconds() const {
  std::optional<Clock::time_point> next;
  for (const auto& entry : entries_) {
    const auto& deadline = entry->request.deadline;
    if (deadline && (!next || *deadline < *next)) next = deadline;
  }
  if (!next) return -1;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(*next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60'000));
}

}  // namespace mk::daemon
