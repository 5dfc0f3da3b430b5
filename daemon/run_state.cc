#include "daemon/run_state.h"

#include <utility>

namespace mk::daemon {
namespace {

// The state goes first, its model last.
struct Held {
  std::shared_ptr<const void> owner;
  Reservation memory;
  RunState state;
};

}  // namespace

SharedState Share(RunState state, std::shared_ptr<const void> owner, Reservation memory) {
  memory.Shrink(state.sequence->state_bytes() + state.tokens.size() * sizeof(int32_t) +
                state.logits.size() * sizeof(float));
  auto held = std::make_shared<Held>();
  held->owner = std::move(owner);
  held->memory = std::move(memory);
  held->state = std::move(state);
  return {held, &held->state};
}

}  // namespace mk::daemon
