// The answer to the status op, put together from what the I/O thread knows.

#pragma once

#include <array>
#include <string>
#include <string_view>

#include "daemon/core.h"
#include "daemon/jobs/job_board.h"
#include "protocol/messages.h"

namespace mk::daemon {

// What of the answer is the same as long as the daemon lives.
struct Identity {
  std::string socket;
  std::string log;
  std::string journal_unit;
  std::string state_directory;
  Clock::time_point started;
  std::chrono::system_clock::time_point started_at;
};

// One line for `systemctl status`: "2 requests: 1 prefill, 1 decode; 1 model, 480 MiB of 12.0 GiB".
std::string StatusLine(const Core& core);

// Every phase that a request can be in, as status tells it.
inline constexpr std::array<std::string_view, 6> kPhases = {"queued", "loading", "prefill",
                                                            "decode", "paused",  "working"};
std::string_view PhaseOf(const ClientRequest& request);

protocol::StatusDone BuildStatus(const Core& core, const JobBoard& jobs, const Identity& identity,
                                 size_t connections, Clock::time_point now);

}  // namespace mk::daemon
