// The scheduler: one thread that turns waiting and running requests into forward passes.
//
// Each step carries one token of every request that decodes (at most max_batch, chosen fairly),
// with guesses of those behind it for requests that speculate, and one chunk of the prompt of one
// that reads; while nobody decodes, several chunks. A step is short (a chunk is 64 tokens), so a
// request is cancelled, and a new one seen, within one step.
//
// Background requests have what interactive ones leave: places of a batch that are free, steps in
// which no interactive request can run, a start when none waits. So that they do not starve, every
// kBackgroundEvery-th step of interactive requests has a place and a chunk for them, and every
// kBackgroundEvery-th start goes to one that waits. They never have the last quarter of the places
// for sequences, so that an interactive request need not wait for one of them to end.
//
// A request whose prompt begins like one that is being read waits for that, unless the other one
// cannot run. It keeps its place and its memory, so that it goes on in any case.
//
// A request may run ahead of its client by a window of messages and bytes only; then it is left
// out of the steps until the client acknowledges. Nobody else waits for it.
//
// Submit, Wake, BeginShutdown and Stop may be called from any thread; events come out of the queue
// that the constructor was given, in order per request, ending with one Finished.

#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "daemon/bounded_queue.h"
#include "daemon/fair_picker.h"
#include "daemon/ledger.h"
#include "daemon/metrics.h"
#include "daemon/step_task.h"
#include "engine/model/executor.h"

namespace mk::daemon {

struct SchedulerLimits {
  size_t max_batch = 8;       // sequences that decode in one step
  size_t max_active = 32;     // sequences that exist at once
  size_t max_waiting = 4096;  // submissions on their way to the thread
  // Unacknowledged bytes per request; what one step shows may be over.
  size_t window_bytes = 32u << 20;
  std::chrono::microseconds prefill_target{150'000};  // aim for the length of a step
};

// Steps, and starts, of which one is the background's when others want them all.
inline constexpr size_t kBackgroundEvery = 8;

// Work that wants the executor for itself, such as a benchmark. It runs on the scheduler's thread
// while no request is started, and none starts before it has. Ends soon with kCancelled when
// `go_on` says false.
using ExclusiveWork =
    std::function<Result<protocol::Body>(Executor& executor, const std::function<bool()>& go_on)>;

struct Submission {
  uint64_t key = 0;     // names the request in events
  uint64_t client = 0;  // for fairness
  // One of the two.
  std::unique_ptr<StepTask> task;
  ExclusiveWork work;
  std::shared_ptr<RequestControl> control;
  uint64_t state_bytes = 0;  // to reserve before the sequence is made or the work begins
  Reservation held;          // what of it is reserved already
  std::optional<Clock::time_point> deadline;
};

struct RequestStarted {};  // the sequence exists, its prompt is being read
// No room for its state. It asks again when another request has ended, or when its control's
// needs_room has become false.
struct RequestNeedsRoom {
  uint64_t bytes = 0;
  bool others_run = false;  // and may give back some
};
struct RequestFinished {
  // What the task said at its end, or why it has no say: kCancelled when the control's flag was
  // seen before it had begun.
  Result<protocol::Body> result;
  bool timed_out = false;  // kCancelled because the deadline passed
  SharedState left;        // what a run left behind, however it ended; mostly null
};
struct SchedulerEvent {
  uint64_t key = 0;
  std::variant<RequestStarted, RequestNeedsRoom, protocol::Body, RequestFinished> what;
};
// Hands an event over; waits while the receiver is behind.
using SchedulerSink = std::function<void(SchedulerEvent)>;

class Scheduler {
 public:
  // The executor, metrics and ledger outlive the scheduler.
  Scheduler(Executor& executor, Metrics& metrics, Ledger& ledger, SchedulerSink sink,
            const SchedulerLimits& limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // False when too many submissions wait already.
  bool Submit(Submission submission);
  // Makes the thread look at the controls again: after a cancel or an acknowledgement.
  void Wake() { submissions_.event().Signal(); }
  // Lets those who found no room ask again: somebody else than a request gave some back.
  void RoomWasMade() {
    room_was_made_.store(true);
    Wake();
  }
  // Changes whenever the thread has done something, within a step too; if it is alive, soon after
  // Wake(). From any thread.
  uint64_t heartbeat() const;
  // Of the steps and activations from now on; see SchedulerLimits.
  void SetBatch(size_t max_batch, size_t max_active) {
    max_batch_.store(max_batch);
    max_active_.store(max_active);
  }
  // Ends what runs (kCancelled for everyone) and joins the thread.
  void Stop();

 private:
  struct Entry {
    Submission request;
    Reservation memory;
    bool started = false;
    bool begun = false;  // takes part in steps; started ones may still wait for what another reads
    uint64_t sent_messages = 0;
    uint64_t sent_bytes = 0;
    bool ended = false;
    bool late = false;    // its deadline passed
    bool ending = false;  // cancelled or late; its task has one more item
    bool alone = false;   // its work is running
    bool background() const { return request.control->background.load(); }
  };
  // One step's items, all of one model; kept between steps for their memory.
  struct Batch {
    std::vector<ForwardItem> items;
    std::vector<Entry*> entries;
    size_t prefill_tokens = 0;
    size_t decoding = 0;
    bool observed = false;
    void Clear();
  };

  void Run();
  void TakeSubmissions();
  void EndCancelledAndLate();
  void EndEarly(Entry& entry);
  void Activate();
  bool Waits(Entry& entry) const;
  bool BeginWaiting();
  void Begin(Entry& entry);
  Entry* NextToStart();
  Entry* FindExclusive();
  bool ReserveFor(Entry& entry);
  void AskForRoomAgain();
  bool RunExclusive(Entry& entry);
  void AttendWaiting(Clock::time_point& attended);
  bool StepAll();
  void BuildBatch(const Model& model);
  void AddToBatch(Entry& entry, size_t max_tokens);
  void AddDecoding(Entry& entry);
  void ShareSteps();
  enum class Stage { kPrefill, kDecode };
  bool FindCandidates(const Model& model, Stage stage, bool background);
  void PickDecoding(const Model& model);
  void PickPrefill(const Model& model);
  void AddPrefill(FairPicker& picker, size_t budget);
  void RunBatch(const Model& model);
  void RunOneByOne(const Model& model);
  Status Forward(const Model& model, std::span<ForwardItem> items, std::span<Entry* const> entries);
  Status RunItems(const Model& model, std::span<ForwardItem> items,
                  std::span<Entry* const> entries);
  void AcceptAll();
  void AcceptOne(Entry& entry);
  void Deliver(Entry& entry, StepOutcome outcome);
  void Send(Entry& entry, protocol::Body message);
  void Finish(Entry& entry, Result<protocol::Body> result);
  void RemoveEnded();
  bool WindowOpen(const Entry& entry) const;
  bool MayRunAhead(Entry& entry);
  void CountStep(Clock::duration took);
  void CountExperts();
  size_t PrefillBudget() const;
  int WaitMilliseconds() const;

  Executor& executor_;
  Metrics& metrics_;
  Ledger& ledger_;
  const SchedulerSink sink_;
  const SchedulerLimits limits_;
  std::atomic<size_t> max_batch_;
  std::atomic<size_t> max_active_;
  BoundedQueue<Submission> submissions_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> room_was_made_{false};
  std::atomic<uint64_t> beats_{0};  // rounds of the thread

  // Below: the scheduler's thread alone.
  std::vector<std::unique_ptr<Entry>> entries_;  // waiting and started, in order of arrival
  size_t started_ = 0;
  size_t started_background_ = 0;
  // Of interactive requests and of the background.
  std::array<FairPicker, 2> activation_pickers_;
  std::array<FairPicker, 2> decode_pickers_;
  std::array<FairPicker, 2> prefill_pickers_;
  std::array<uint64_t, 2> without_room_{};  // key of the one that waits for room; 0: none
  size_t passed_over_ = 0;         // starts of others since the background had one, while it waited
  bool interactive_runs_ = false;  // in this step
  bool background_turn_ = false;   // it has a share of this step in any case
  size_t interactive_steps_ = 0;   // since the background was alone
  Batch batch_;
  std::vector<const Model*> models_;
  std::vector<Entry*> candidates_;
  std::vector<uint64_t> candidate_clients_;
  double seconds_per_prefill_token_ = 0;
  ExpertUse counted_experts_;  // what of the executor's count is in the metrics
  std::thread thread_;
};

}  // namespace mk::daemon
