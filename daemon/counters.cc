#include "daemon/counters.h"

namespace mk::daemon {
namespace {

// In the order of the enumeration.
constexpr std::array<CounterInfo, static_cast<size_t>(Counter::kCount)> kInfo = {{
    {"messages_received", "messages that arrived"},
    {"messages_rejected", "messages that were malformed or asked for nothing known"},
    {"messages_sent", "messages handed to the transport"},
    {"sends_deferred", "sends put off because the client's pipe was full"},
    {"connections_accepted", "connections that clients opened"},
    {"connections_closed", "connections that ended"},
    {"requests_accepted", "run requests admitted"},
    {"requests_done", "run requests that ended well"},
    {"requests_failed", "run requests that ended with an error"},
    {"requests_cancelled", "run requests that were cancelled or ran out of time"},
    {"requests_busy", "run requests turned away because the queue was full"},
    {"clients_lost", "clients with requests that vanished or fell silent"},
    {"prompt_tokens", "prompt tokens read"},
    {"generated_tokens", "tokens generated"},
    {"steps", "scheduler steps"},
    {"forwards", "forward passes"},
    {"step_microseconds", "time spent in scheduler steps"},
    {"models_loaded", "models loaded"},
    {"models_unloaded", "models unloaded"},
    {"precisions_prepared", "further precisions that loaded models were prepared for"},
    {"jobs_started", "jobs started"},
    {"jobs_done", "jobs that ended, well or not"},
    {"socket_recreated", "times the socket's path had vanished and was made anew"},
}};

}  // namespace

const CounterInfo& Describe(Counter counter) {
  return kInfo[static_cast<size_t>(counter)];
}

}  // namespace mk::daemon
