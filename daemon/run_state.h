// What a run leaves behind, and what other runs go on from: the state of its sequence, what it has
// read, and what comes next.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/ledger.h"
#include "engine/model/model.h"
#include "protocol/messages.h"

namespace mk::daemon {

// Stands for a token that a state has read and nobody knows: packs of MKMEM001, and those made by
// arithmetic, do not tell.
inline constexpr int32_t kUnknownToken = -1;

// Immutable once it is shared: any thread may read it, and any number of them at once.
struct RunState {
  std::shared_ptr<const Sequence> sequence;  // goes on from copies of it
  std::vector<int32_t> tokens;               // all that it has read, sequence->length() of them
  std::vector<float> logits;                 // after the last one, [vocab]; may be empty
  // What finishes the answer of a chat turn before the next message; empty after plain text.
  std::vector<int32_t> closing;
};

// While it lives, the model does, and the ledger has its memory.
using SharedState = std::shared_ptr<const RunState>;

// Shares a state. `owner` keeps its model. Of `memory` what the state does not hold is given back.
SharedState Share(RunState state, std::shared_ptr<const void> owner, Reservation memory);

// From where a run starts, and whether it leaves its state.
struct RunStart {
  // States of the run's own model, precision and way of reading. It goes on from a copy of the
  // longest whose tokens its prompt begins with, whose logits it needs where that is all of the
  // prompt. When there is none, the prompt is read, with the help of the prefix cache.
  std::vector<SharedState> bases;
  // The run goes on from the first of the bases (there is one), and its prompt comes on top: after
  // the base's closing ids before a chat turn, and without the id that begins a text. No prompt at
  // all: from the logits.
  bool append = false;
  bool leave_state = false;
};

// What happens to the state of a run before its client hears the last message, which it may change.
// Called on the thread for states; not for a run that left none. An error is told in place of a
// `done`.
using KeepState = std::function<protocol::Status(const SharedState& state, protocol::Body& last)>;

}  // namespace mk::daemon
