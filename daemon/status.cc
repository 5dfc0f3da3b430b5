#include "daemon/status.h"

#include <unistd.h>

#include <map>
#include <string>
#include <utility>

#include "daemon/fd_limit.h"
#include "daemon/memory_text.h"
#include "daemon/model_service.h"
#include "daemon/process_usage.h"

namespace mk::daemon {
namespace {

uint64_t MillisecondsBetween(Clock::time_point from, Clock::time_point to) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count());
}

protocol::RequestStatus StatusOf(const Core& core, const ClientRequest& request,
                                 Clock::time_point now) {
  const RequestControl& control = *request.control;
  protocol::RequestStatus status;
  status.client = core.clients.NameOf(request);
  status.id = request.id;
  status.op = protocol::InfoOf(request.op).name;
  status.model = request.model_path;
  status.phase = PhaseOf(request);
  status.prompt_done = control.prompt_done.load();
  status.prompt_total = control.prompt_total.load();
  status.generated = control.generated.load();
  const int64_t first = control.first_token_us.load();
  const int64_t last = control.last_token_us.load();
  if (status.generated > 1 && last > first) {
    status.tokens_per_second =
        static_cast<double>(status.generated - 1) * 1e6 / static_cast<double>(last - first);
  }
  status.age_ms = MillisecondsBetween(request.arrived, now);
  status.state_bytes = control.state_bytes.load();
  if (RunsInSteps(request.op)) {
    status.priority = control.background ? protocol::kBackground : protocol::kInteractive;
  }
  return status;
}

std::string Count(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// The counters by their names; those that differ in a label have its value behind it.
void AddCounters(const Metrics& metrics, std::map<std::string, uint64_t>& counters) {
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    const auto counter = static_cast<Counter>(i);
    const MetricInfo& info = Describe(counter);
    std::string name(info.name);
    if (!info.value.empty()) name.append("_").append(info.value);
    counters[name] = metrics.Get(counter);
  }
  for (size_t i = 0; i < std::variant_size_v<protocol::Args>; ++i) {
    const protocol::OpInfo& op = protocol::InfoOf(static_cast<protocol::Op>(i));
    for (Outcome outcome = 0; outcome < kOutcomes; ++outcome) {
      const uint64_t count = metrics.Requests(op.op, outcome);
      if (count == 0) continue;
      std::string name = "requests_";
      name.append(op.name).append("_").append(OutcomeName(outcome));
      counters[name] = count;
    }
  }
  counters["connections_refused"] = RefusedConnections();
}

// Of the prefix cache: what it holds, and of what use it was.
void AddPrefixes(const PrefixCache& prefixes, std::map<std::string, uint64_t>& counters) {
  const PrefixCache::Counts memory = prefixes.counts();
  const PrefixDisk::Counts disk = prefixes.disk()->counts();
  counters["prefix_lookups"] = memory.lookups;
  counters["prefix_hits"] = memory.hits;
  counters["prefix_disk_hits"] = memory.disk_hits;
  counters["prefix_states"] = memory.states;
  counters["prefix_evictions"] = memory.evicted;
  counters["prefix_disk_states"] = disk.files;
  counters["prefix_disk_bytes"] = disk.bytes;
  counters["prefix_disk_evictions"] = disk.evicted;
  counters["prefix_disk_reads"] = disk.loads;
  counters["prefix_disk_writes"] = disk.writes;
  counters["prefix_disk_unwritten"] = disk.unwritten;
  counters["prefix_disk_refused"] = disk.refused;
}

// Of the distributions of times; those that differ in a label are one here.
std::vector<protocol::LatencyStatus> Latencies(const Metrics& metrics) {
  constexpr std::string_view kSeconds = "_seconds";
  std::vector<protocol::LatencyStatus> latencies;
  std::optional<HistogramSnapshot> sum;
  for (size_t i = 0; i < static_cast<size_t>(Distribution::kCount); ++i) {
    const auto distribution = static_cast<Distribution>(i);
    const DistributionInfo& info = Describe(distribution);
    if (info.unit != "seconds") continue;
    const std::string name(info.name.substr(0, info.name.size() - kSeconds.size()));
    HistogramSnapshot here = metrics.Get(distribution);
    if (!latencies.empty() && latencies.back().name == name) {
      here.Add(*sum);
    } else {
      latencies.emplace_back();
    }
    const uint64_t count = here.count();
    const double ms = 1e3 / info.ticks_per_unit;
    const double total = static_cast<double>(here.sum()) * ms;
    latencies.back() = {name,
                        count,
                        count > 0 ? total / static_cast<double>(count) : 0,
                        here.Quantile(0.5) * ms,
                        here.Quantile(0.9) * ms,
                        here.Quantile(0.99) * ms};
    sum = std::move(here);
  }
  return latencies;
}

}  // namespace

std::string StatusLine(const Core& core) {
  std::map<std::string, size_t> phases;
  size_t requests = 0;
  for (const auto& [key, request] : core.clients.requests()) {
    if (request->final) continue;
    ++requests;
    ++phases[std::string(PhaseOf(*request))];
  }
  std::string text = requests == 0 ? "idle" : Count(requests, "request") + ":";
  const char* before = " ";
  for (const auto& [phase, count] : phases) {
    text += before + std::to_string(count) + " " + phase;
    before = ", ";
  }
  const size_t models = core.registry.entries().size();
  if (models == 0) return text + "; no model loaded";
  return text + "; " + Count(models, "model") + ", " + BytesText(core.ledger.used()) + " of " +
         BytesText(core.ledger.budget());
}

std::string_view PhaseOf(const ClientRequest& request) {
  switch (request.phase) {
    case RequestPhase::kLoading:
      return "loading";
    case RequestPhase::kPreparing:
      return "queued";
    case RequestPhase::kWorking:
      return "working";
    case RequestPhase::kScheduled:
      break;
  }
  const RequestControl& control = *request.control;
  switch (control.phase.load()) {
    case RequestControl::kPrefill:
      return control.paused.load() ? "paused" : "prefill";
    case RequestControl::kAlone:
      return "working";
    case RequestControl::kDecode:
    case RequestControl::kEnded:
      return control.paused.load() ? "paused" : "decode";
    default:
      return "queued";
  }
}

protocol::StatusDone BuildStatus(const Core& core, const JobBoard& jobs, const Identity& identity,
                                 size_t connections, Clock::time_point now) {
  protocol::StatusDone status;
  status.version = protocol::Version();
  status.build_id = protocol::BuildId();
  status.pid = static_cast<uint64_t>(getpid());
  status.uptime_ms = MillisecondsBetween(identity.started, now);
  status.socket = identity.socket;
  status.log = identity.log;
  status.journal_unit = identity.journal_unit;
  status.state_directory = identity.state_directory;
  status.stopping = core.stopping;
  status.threads = static_cast<uint64_t>(core.threads);
  status.max_batch = static_cast<uint64_t>(core.config.max_batch);
  status.connections = connections;
  status.precision = PrecisionName(core.config.precision);
  status.memory["budget"] = core.ledger.budget();
  status.memory["used"] = core.ledger.used();
  status.memory["resident"] = ResidentBytes();
  for (size_t use = 0; use < static_cast<size_t>(MemoryUse::kCount); ++use) {
    const auto which = static_cast<MemoryUse>(use);
    status.memory[std::string(MemoryUseName(which))] = core.ledger.used(which);
  }
  AddCounters(core.metrics, status.counters);
  AddPrefixes(core.prefixes, status.counters);
  status.latency = Latencies(core.metrics);
  for (const auto& [id, entry] : core.registry.entries()) {
    status.models.push_back(StatusOf(core, *entry, now));
  }
  for (const auto& [key, request] : core.clients.requests()) {
    if (!request->final) status.requests.push_back(StatusOf(core, *request, now));
  }
  for (const Job* job : jobs.InOrder()) {
    if (!protocol::IsEnded(job->record.state)) status.jobs.push_back(jobs.StatusOf(*job));
  }
  status.jobs_trouble = jobs.trouble();
  return status;
}

}  // namespace mk::daemon
