#include "daemon/status.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "daemon/fd_limit.h"
#include "daemon/model_service.h"

namespace mk::daemon {
namespace {

uint64_t MillisecondsBetween(Clock::time_point from, Clock::time_point to) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(to - from).count());
}

std::string PhaseOf(const ClientRequest& request) {
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
  switch (request.control->phase.load()) {
    case RequestControl::kPrefill:
      return "prefill";
    case RequestControl::kAlone:
      return "working";
    case RequestControl::kDecode:
    case RequestControl::kEnded:
      return "decode";
    default:
      return "queued";
  }
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
  return status;
}

std::string Count(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string BytesText(uint64_t bytes) {
  constexpr double kMiB = 1 << 20;
  const double mib = static_cast<double>(bytes) / kMiB;
  char text[32];
  std::snprintf(text, sizeof text, mib < 1024 ? "%.0f MiB" : "%.1f GiB",
                mib < 1024 ? mib : mib / 1024);
  return text;
}

// Resident set of the process in bytes; 0 when /proc does not tell.
uint64_t ResidentBytes() {
  uint64_t pages = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "re")) {
    unsigned long total = 0;
    unsigned long resident = 0;
    if (std::fscanf(file, "%lu %lu", &total, &resident) == 2) pages = resident;
    std::fclose(file);
  }
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::string StatusLine(const Core& core) {
  std::map<std::string, size_t> phases;
  size_t requests = 0;
  for (const auto& [key, request] : core.clients.requests()) {
    if (request->final) continue;
    ++requests;
    ++phases[PhaseOf(*request)];
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

protocol::StatusDone BuildStatus(const Core& core, const Identity& identity, size_t connections,
                                 Clock::time_point now) {
  protocol::StatusDone status;
  status.version = protocol::Version();
  status.build_id = protocol::BuildId();
  status.pid = static_cast<uint64_t>(getpid());
  status.uptime_ms = MillisecondsBetween(identity.started, now);
  status.socket = identity.socket;
  status.log = identity.log;
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
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i) {
    const auto counter = static_cast<Counter>(i);
    status.counters[std::string(Describe(counter).name)] = core.counters.Get(counter);
  }
  status.counters["connections_refused"] = RefusedConnections();
  for (const auto& [id, entry] : core.registry.entries()) {
    status.models.push_back(StatusOf(*entry, now));
  }
  for (const auto& [key, request] : core.clients.requests()) {
    if (!request->final) status.requests.push_back(StatusOf(core, *request, now));
  }
  return status;
}

}  // namespace mk::daemon
