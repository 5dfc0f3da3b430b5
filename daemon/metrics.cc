#include "daemon/metrics.h"

#include <string_view>

namespace mk::daemon {
namespace {

template <typename Enum>
constexpr size_t kSize = static_cast<size_t>(Enum::kCount);

// All tables are in the order of their enumerations.
constexpr std::array<MetricInfo, kSize<Counter>> kCounters = {{
    {"messages_received", "", "messages that arrived"},
    {"messages_rejected", "", "messages that were malformed or asked for nothing known"},
    {"messages_sent", "", "messages handed to the transport"},
    {"sends_deferred", "", "sends put off because the client's pipe was full"},
    {"answers_dropped", "", "answers to clients that left megabytes of answers unread"},
    {"received_bytes", "bytes", "payload of the messages that arrived"},
    {"sent_bytes", "bytes", "payload of the messages handed to the transport"},
    {"connections_accepted", "", "connections that clients opened"},
    {"connections_closed", "", "connections that ended"},
    {"clients_lost", "", "clients with requests that vanished or fell silent"},
    {"requests_stopped", "", "requests that were ended before their time", "reason", "client"},
    {"requests_stopped", "", "", "reason", "client_left"},
    {"requests_stopped", "", "", "reason", "client_silent"},
    {"requests_stopped", "", "", "reason", "deadline"},
    {"requests_stopped", "", "", "reason", "shutdown"},
    {"outbox_pauses", "", "times a stream was left out until its client caught up"},
    {"prompt_tokens", "", "tokens of the prompts of runs that started"},
    {"prefill_tokens", "", "prompt tokens computed"},
    {"cached_tokens", "", "prompt tokens that the prefix cache spared"},
    {"generated_tokens", "", "tokens generated"},
    {"draft_passes", "", "forward passes that verified a draft of a request"},
    {"drafted_tokens", "", "tokens that were guessed and verified"},
    {"accepted_tokens", "", "of them, those that were right"},
    {"forwards", "", "forward passes"},
    {"expert_picks", "", "experts that the routers chose, over all tokens and layers"},
    {"expert_reads", "", "experts read and unpacked: once per layer and forward pass"},
    {"expert_reads_saved", "", "expert reads saved because requests of a step shared them"},
    {"models_loaded", "", "models loaded"},
    {"models_unloaded", "", "models unloaded"},
    {"precisions_prepared", "", "further precisions that loaded models were prepared for"},
    {"loads_failed", "", "loads and preparations that gave an error"},
    {"jobs_started", "", "jobs started"},
    {"jobs_done", "", "jobs that ended, well or not"},
    {"socket_recreated", "", "times the socket's path had vanished and was made anew"},
    {"prefix_waits", "", "runs that waited for another one to read what their prompts share"},
}};

constexpr double kMicroseconds = 1e6;
constexpr HistogramRange kShortTimes = {6, 26};  // 64 us .. 67 s
constexpr HistogramRange kLongTimes = {10, 32};  // 1 ms .. 72 min

constexpr DistributionInfo Time(std::string_view name, std::string_view help, HistogramRange range,
                                std::string_view label = {}, std::string_view value = {}) {
  return {{name, "seconds", help, label, value}, kMicroseconds, range};
}
constexpr DistributionInfo Size(std::string_view name, std::string_view help,
                                HistogramRange range) {
  return {{name, "", help}, 1, range};
}

constexpr std::array<DistributionInfo, kSize<Distribution>> kDistributions = {{
    Time("queue_wait_seconds", "from a run's arrival to its first step, without loading",
         kLongTimes),
    Time("first_token_seconds", "from a run's arrival to its first token, loading included",
         kLongTimes),
    Time("token_seconds", "from one token of a stream to its next", kShortTimes),
    Time("step_seconds", "steps of the scheduler, by what they carried", kShortTimes, "kind",
         "decode"),
    Time("step_seconds", "", kShortTimes, "kind", "prefill"),
    Time("step_seconds", "", kShortTimes, "kind", "mixed"),
    Size("decode_batch_sequences", "sequences that decoded in a step, when any did", {0, 6}),
    Size("prefill_batch_tokens", "prompt tokens of a step, when there were any", {0, 10}),
    Time("load_seconds", "loads of models and preparations of precisions that succeeded",
         kLongTimes),
}};

constexpr std::array<GaugeInfo, kSize<Gauge>> kGauges = {{
    {{"build_info", "", "always 1; the labels tell the build"}},
    {{"worker_threads", "", "threads that compute"}},
    {{"max_batch_sequences", "", "sequences that may decode in one step"}},
    {{"connections", "", "connections that are open"}},
    {{"connections_refused", "", "connections refused for lack of descriptors"}, true},
    {{"open_requests", "", "requests that have not ended, by phase"}},
    {{"jobs", "", "jobs that are remembered, by state"}},
    {{"jobs_unsaved", "", "1 while records of jobs cannot be written, else 0"}},
    {{"events_waiting", "", "events of other threads that the I/O thread has not seen"}},
    {{"models", "", "models held, by state"}},
    {{"model_memory_bytes", "bytes", "memory that a model holds beside its mapped file"}},
    {{"model_users", "", "requests that hold a model or wait for it"}},
    {{"memory_budget_bytes", "bytes", "bytes that the ledger may promise"}},
    {{"memory_used_bytes", "bytes", "bytes that the ledger has promised, by kind"}},
    {{"process_cpu_seconds", "seconds", "processor time used, user and system"}, true},
    {{"process_resident_memory_bytes", "bytes", "resident memory, mapped model files included"}},
    {{"process_open_fds", "", "open file descriptors"}},
    {{"process_max_fds", "", "limit of open file descriptors"}},
    {{"process_threads", "", "threads of the process"}},
    {{"process_start_time_seconds", "seconds", "start of the daemon, in seconds since 1970"}},
    {{"prefix_states", "", "states of prompts that are kept, by tier"}},
    {{"prefix_bytes", "bytes", "bytes that they take, by tier"}},
    {{"prefix_limit_bytes", "bytes", "bytes that they may take, by tier"}},
    {{"prefix_evictions", "", "states of prompts that had to go, by tier"}, true},
    {{"prefix_lookups", "", "runs that looked for a state of their prompt"}, true},
    {{"prefix_hits", "", "runs that found one, by where it was when they came"}, true},
    {{"prefix_disk_reads", "", "states of prompts read from disk"}, true},
    {{"prefix_disk_writes", "", "states of prompts written to disk"}, true},
    {{"prefix_disk_unwritten", "", "states of prompts that could not be kept on disk"}, true},
    {{"prefix_disk_refused", "", "files of states that were damaged or of something else"}, true},
}};

constexpr MetricInfo kRequests = {"requests", "", "requests answered, by op and outcome"};

constexpr bool Fits(HistogramRange range) {
  return range.lowest >= 0 && range.lowest < range.highest && range.highest <= 48 &&
         range.highest - range.lowest <= Histogram::kMaxDoublings;
}
constexpr bool AllFit() {
  for (const DistributionInfo& info : kDistributions) {
    if (!Fits(info.range)) return false;
  }
  return true;
}
static_assert(AllFit());

}  // namespace

const MetricInfo& Describe(Counter counter) {
  return kCounters[static_cast<size_t>(counter)];
}

const DistributionInfo& Describe(Distribution distribution) {
  return kDistributions[static_cast<size_t>(distribution)];
}

const GaugeInfo& Describe(Gauge gauge) {
  return kGauges[static_cast<size_t>(gauge)];
}

const MetricInfo& DescribeRequests() {
  return kRequests;
}

Metrics::Metrics() : Metrics(std::make_index_sequence<kSize<Distribution>>()) {}

Outcome OutcomeOf(const protocol::Body& last) {
  const auto of = [](protocol::ErrorCode code) { return static_cast<Outcome>(code) + 1; };
  if (const auto* error = std::get_if<protocol::Error>(&last)) return of(error->code);
  const auto* run = std::get_if<protocol::RunDone>(&last);
  if (run != nullptr && run->finish_reason == "cancelled") {
    return of(protocol::ErrorCode::kCancelled);
  }
  return kOutcomeDone;
}

std::string_view OutcomeName(Outcome outcome) {
  if (outcome == kOutcomeDone) return "done";
  return protocol::NameOf(static_cast<protocol::ErrorCode>(outcome - 1));
}

}  // namespace mk::daemon
