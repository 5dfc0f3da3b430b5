#include "daemon/metrics_report.h"

#include <array>
#include <map>

#include "daemon/fd_limit.h"
#include "daemon/model_service.h"
#include "daemon/process_usage.h"
#include "protocol/version.h"

namespace mk::daemon {
namespace {

double AsNumber(uint64_t value) {
  return static_cast<double>(value);
}

void AddServer(const Core& core, size_t connections, MetricSheet& sheet) {
  sheet.Add(Gauge::kBuild, 1,
            {{"version", std::string(protocol::Version())},
             {"build_id", std::string(protocol::BuildId())}});
  sheet.Add(Gauge::kWorkers, core.threads);
  sheet.Add(Gauge::kMaxBatch, core.config.max_batch);
  sheet.Add(Gauge::kConnections, AsNumber(connections));
  sheet.Add(Gauge::kConnectionsRefused, AsNumber(RefusedConnections()));
  sheet.Add(Gauge::kEventsWaiting, AsNumber(core.events.size()));
}

void AddRequests(const Core& core, MetricSheet& sheet) {
  std::map<std::string_view, uint64_t> open;
  for (const std::string_view phase : kPhases) open[phase] = 0;
  for (const auto& [key, request] : core.clients.requests()) {
    if (!request->final) ++open[PhaseOf(*request)];
  }
  for (const auto& [phase, count] : open) {
    sheet.Add(Gauge::kOpenRequests, AsNumber(count), {{"phase", std::string(phase)}});
  }
}

void AddJobs(const JobBoard& jobs, MetricSheet& sheet) {
  std::array<uint64_t, protocol::kJobStates> by_state{};
  for (const auto& [id, job] : jobs.jobs()) ++by_state[static_cast<size_t>(job->record.state)];
  for (size_t i = 0; i < by_state.size(); ++i) {
    const auto name = protocol::NameOf(static_cast<protocol::JobState>(i));
    sheet.Add(Gauge::kJobs, AsNumber(by_state[i]), {{"state", std::string(name)}});
  }
  sheet.Add(Gauge::kJobsUnsaved, jobs.trouble().empty() ? 0 : 1);
}

// Several entries may have one path: the file was replaced, or other vocabularies were named. The
// number of the entry tells them apart.
MetricLabels LabelsOf(uint64_t id, const protocol::ModelStatus& model) {
  return {{"model", model.path}, {"entry", std::to_string(id)}};
}

void AddModels(const Core& core, MetricSheet& sheet) {
  std::map<std::string, uint64_t> by_state = {{"loading", 0}, {"ready", 0}, {"replaced", 0}};
  std::map<uint64_t, protocol::ModelStatus> models;
  for (const auto& [id, entry] : core.registry.entries()) {
    const auto& model = models.emplace(id, StatusOf(core, *entry, Clock::now())).first->second;
    ++by_state[model.state];
  }
  for (const auto& [state, count] : by_state) {
    sheet.Add(Gauge::kModels, AsNumber(count), {{"state", state}});
  }
  for (const auto& [id, model] : models) {
    sheet.Add(Gauge::kModelMemory, AsNumber(model.memory_bytes), LabelsOf(id, model));
  }
  for (const auto& [id, model] : models) {
    sheet.Add(Gauge::kModelUsers, AsNumber(model.users), LabelsOf(id, model));
  }
}

void AddLedger(const Ledger& ledger, MetricSheet& sheet) {
  sheet.Add(Gauge::kMemoryBudget, AsNumber(ledger.budget()));
  for (size_t i = 0; i < static_cast<size_t>(MemoryUse::kCount); ++i) {
    const auto use = static_cast<MemoryUse>(i);
    sheet.Add(Gauge::kMemoryUsed, AsNumber(ledger.used(use)),
              {{"kind", std::string(MemoryUseName(use))}});
  }
}

void AddPrefixes(const PrefixCache& prefixes, MetricSheet& sheet) {
  const PrefixCache::Counts memory = prefixes.counts();
  const PrefixDisk::Counts disk = prefixes.disk()->counts();
  const auto both = [&](Gauge gauge, uint64_t in_memory, uint64_t on_disk) {
    sheet.Add(gauge, AsNumber(in_memory), {{"tier", "memory"}});
    sheet.Add(gauge, AsNumber(on_disk), {{"tier", "disk"}});
  };
  both(Gauge::kPrefixStates, memory.states, disk.files);
  both(Gauge::kPrefixBytes, memory.bytes, disk.bytes);
  both(Gauge::kPrefixLimit, memory.limit, disk.limit);
  both(Gauge::kPrefixEvictions, memory.evicted, disk.evicted);
  sheet.Add(Gauge::kPrefixLookups, AsNumber(memory.lookups));
  both(Gauge::kPrefixHits, memory.hits - memory.disk_hits, memory.disk_hits);
  sheet.Add(Gauge::kPrefixDiskReads, AsNumber(disk.loads));
  sheet.Add(Gauge::kPrefixDiskWrites, AsNumber(disk.writes));
  sheet.Add(Gauge::kPrefixDiskUnwritten, AsNumber(disk.unwritten));
  sheet.Add(Gauge::kPrefixDiskRefused, AsNumber(disk.refused));
}

void AddProcess(const Identity& identity, MetricSheet& sheet) {
  const ProcessUsage usage = MeasureProcess();
  sheet.Add(Gauge::kProcessorTime, usage.cpu_seconds);
  sheet.Add(Gauge::kResidentMemory, AsNumber(usage.resident_bytes));
  sheet.Add(Gauge::kOpenFiles, AsNumber(usage.open_fds));
  sheet.Add(Gauge::kMaxFiles, AsNumber(usage.max_fds));
  sheet.Add(Gauge::kProcessThreads, AsNumber(usage.threads));
  const auto start = identity.started_at.time_since_epoch();
  sheet.Add(Gauge::kStartTime, std::chrono::duration<double>(start).count());
}

}  // namespace

MetricSheet CollectMetrics(const Core& core, const JobBoard& jobs, const Identity& identity,
                           size_t connections) {
  MetricSheet sheet;
  sheet.Add(core.metrics);
  AddServer(core, connections, sheet);
  AddRequests(core, sheet);
  AddJobs(jobs, sheet);
  AddModels(core, sheet);
  AddLedger(core.ledger, sheet);
  AddProcess(identity, sheet);
  AddPrefixes(core.prefixes, sheet);
  return sheet;
}

}  // namespace mk::daemon
