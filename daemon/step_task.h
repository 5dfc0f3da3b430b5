// What the scheduler needs to know of a request: a StepTask asks for forward passes of one model,
// one item per step, and turns their logits into messages for its client.
//
// A task belongs to the scheduler's thread from Submit() on.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/ledger.h"
#include "daemon/run_state.h"
#include "engine/base/result.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"
#include "protocol/messages.h"

namespace mk::daemon {

using Clock = std::chrono::steady_clock;

// Bytes that a message counts for in its request's window.
size_t MessageCost(const protocol::Body& message);

struct StepOutcome {
  std::vector<protocol::Body> messages;  // chunks and progress, in order
  std::optional<protocol::Body> done;    // the last message, if the task is finished
  size_t known = 0;                      // of Begin(): tokens of the prompt that need not be read
  // Of Accept(): tokens of the item that were a guess, and those of them that were right.
  size_t drafted = 0;
  size_t accepted = 0;
};

class StepTask {
 public:
  virtual ~StepTask() = default;

  virtual const Model& model() const = 0;
  // Makes the sequence. Called once, when the task's turn has come and its memory is reserved.
  virtual Status Start() = 0;
  // The task that reads what this one would read as well, and that it waits for; null: it can go
  // on. Asked after Start() until Begin() is called.
  virtual const StepTask* Awaits() { return nullptr; }
  // What there is to say before the first forward pass. Called once, after Start(), when it waits
  // for nobody, or for one that does not get on.
  virtual Result<StepOutcome> Begin() { return StepOutcome{}; }
  // Whether the next item belongs to the prompt.
  virtual bool prefilling() const = 0;
  // The next item of at most `max_tokens`. While prefilling that is at least kPrefillBlock, and the
  // item is cut at an absolute multiple of kPrefillBlock; else it is one token, and perhaps a guess
  // of those behind it. Its spans stay valid until Accept().
  virtual Result<ForwardItem> NextItem(size_t max_tokens) = 0;
  // The forward pass with the item took so long, and carried `rows` tokens of requests that decode
  // and none of prompts. Called before Accept(), not always.
  virtual void Took(size_t /*rows*/, double /*seconds*/) {}
  // Shadows of experts served so many picks of the item (ForwardItem::shadowed). Before Accept(),
  // not if there are none.
  virtual void Shadowed(uint64_t /*picks*/) {}
  // Called after a forward pass with the item.
  virtual Result<StepOutcome> Accept() = 0;
  // What needs the executor after Accept(), whose outcome it may add to; the executor's scratch is
  // free then.
  virtual Status Examine(Executor& /*executor*/, StepOutcome& /*outcome*/) { return {}; }
  // Ends a task before its time: its last message. Nothing: it has one more item, whose Accept()
  // says the last word. Called once, after Start() and not between NextItem() and Accept().
  virtual std::optional<protocol::Body> Cancelled() = 0;
  // What the task leaves behind when it has ended, in the memory that was reserved for it, which it
  // then takes over. Null: nothing. The task goes after that.
  virtual SharedState Leave(Reservation& /*memory*/) { return nullptr; }
  // Receives what the forward pass shows of this task's item, with item index 0; may be null.
  virtual ForwardObserver* observer() { return nullptr; }
};

// Shared by the I/O thread and the scheduler: what may change, or be looked at, while a request
// runs. All members are atomic; none guards another.
struct RequestControl {
  std::atomic<bool> cancelled{false};
  // Gives way to others; set before it is submitted.
  std::atomic<bool> background{false};
  // The scheduler has said that there is no room for its state, and waits until this is false.
  std::atomic<bool> needs_room{false};
  // Unacknowledged messages that the task may have; set before it is submitted.
  std::atomic<uint64_t> window{protocol::kDefaultWindow};
  // Messages and bytes of the task that its client has acknowledged.
  std::atomic<uint64_t> acked_messages{0};
  std::atomic<uint64_t> acked_bytes{0};
  // For status.
  enum Phase : int { kWaiting, kPrefill, kDecode, kAlone, kEnded };
  std::atomic<int> phase{kWaiting};
  std::atomic<bool> paused{false};  // left out of the steps until its client acknowledges
  std::atomic<uint64_t> prompt_total{0};
  std::atomic<uint64_t> prompt_done{0};
  std::atomic<uint64_t> generated{0};
  std::atomic<int64_t> started_us{0};      // steady clock; 0: not yet
  std::atomic<int64_t> first_token_us{0};  // steady clock; 0: not yet
  std::atomic<int64_t> last_token_us{0};
  std::atomic<uint64_t> state_bytes{0};  // reserved for the sequence
};

inline int64_t NowMicroseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace mk::daemon
