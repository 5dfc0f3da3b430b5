#include "daemon/replay_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "daemon/memory_text.h"
#include "engine/replay/markov_predictor.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

template <typename... Values>
std::string Format(const char* format, Values... values) {
  std::array<char, 200> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string CapacityText(uint64_t capacity, const ReplaySettings& settings) {
  return settings.in_bytes ? BytesText(capacity) : std::to_string(capacity);
}

const char* CapacityHead(const ReplaySettings& settings) {
  return settings.in_bytes ? "budget" : "entries";
}

std::vector<TimedReplay> TimedRows(const DemandTrace& trace, uint64_t capacity,
                                   const ReplaySettings& settings) {
  std::vector<TimedReplay> timed;
  TimedOptions options;
  options.budget = capacity;
  options.disk = settings.clock->disk;
  options.compute_s = settings.clock->compute_s;
  for (const CachePolicyKind policy : kReplayPolicies) {
    options.policy = policy;
    timed.push_back(ReplayTimed(trace, options));
  }
  MarkovPredictor predictor(trace.layers, trace.experts, settings.top_k, settings.predict);
  options.policy = CachePolicyKind::kLru;
  options.predictor = &predictor;
  timed.push_back(ReplayTimed(trace, options));
  return timed;
}

// `gap`: points that the best policy gains over LRU.
std::string RowText(const ReplayRow& row, uint64_t requests, const ReplaySettings& settings) {
  const double lru = Percent(row.hits[0], requests);
  const double best = Percent(row.belady, requests);
  return Format(
      "%9s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %6.1f %12llu %15llu\n",
      CapacityText(row.capacity, settings).c_str(), lru, Percent(row.hits[1], requests),
      Percent(row.hits[2], requests), Percent(row.hits[3], requests),
      Percent(row.markov.hits, requests), best, best - lru,
      static_cast<unsigned long long>(requests - row.hits[0]),
      static_cast<unsigned long long>(requests - row.markov.hits + row.markov.prefetches));
}

std::string ClockText(const ReplayTable& table, const ReplaySettings& settings) {
  const ReplayClock& clock = *settings.clock;
  std::string text = Format(
      "  waits in ms per pass of %llu; disk: %g ms, %g MB/s, %zu at once; a pass works %g ms\n",
      static_cast<unsigned long long>(table.passes), clock.disk.latency_s * 1e3,
      clock.disk.bytes_per_s * 1e-6, clock.disk.depth, clock.compute_s * 1e3);
  text += Format("%9s      lru      lfu      arc     aged   markov  aged p95  aged max\n",
                 CapacityHead(settings));
  for (const ReplayRow& row : table.rows) {
    text += Format("%9s", CapacityText(row.capacity, settings).c_str());
    for (const TimedReplay& one : row.timed) text += Format(" %8.2f", one.MeanStall() * 1e3);
    const TimedReplay& aged = row.timed[kReplayPolicies.size() - 1];
    text += Format(" %9.2f %9.2f\n", aged.StallQuantile(0.95) * 1e3, aged.StallQuantile(1) * 1e3);
  }
  return text;
}

ordered_json ToJson(const TimedReplay& timed) {
  return {{"stall_ms_per_pass", timed.MeanStall() * 1e3},
          {"stall_ms_p95", timed.StallQuantile(0.95) * 1e3},
          {"stall_ms_max", timed.StallQuantile(1) * 1e3},
          {"hits", timed.hits},
          {"joined", timed.joined},
          {"prefetches", timed.prefetches},
          {"bytes", timed.bytes}};
}

ordered_json ToJson(const ReplayRow& row, bool in_bytes) {
  ordered_json hits;
  for (size_t i = 0; i < kReplayPolicies.size(); ++i) {
    hits[std::string(CachePolicyName(kReplayPolicies[i]))] = row.hits[i];
  }
  hits["markov"] = row.markov.hits;
  hits["belady"] = row.belady;
  ordered_json json = {{in_bytes ? "bytes" : "entries", row.capacity},
                       {"hits", std::move(hits)},
                       {"markov_prefetches", row.markov.prefetches}};
  for (size_t i = 0; i < row.timed.size(); ++i) {
    const std::string name = i < kReplayPolicies.size()
                                 ? std::string(CachePolicyName(kReplayPolicies[i]))
                                 : std::string("markov");
    json["timed"][name] = ToJson(row.timed[i]);
  }
  return json;
}

}  // namespace

ReplayTable MakeReplayTable(const std::string& name, const DemandTrace& trace,
                            const ReplaySettings& settings) {
  ReplayTable table{name,
                    trace.demands.size(),
                    trace.DistinctKeys(),
                    trace.layers,
                    trace.experts,
                    trace.PassStarts().size() - 1,
                    {}};
  for (const uint64_t capacity : settings.capacities) {
    ReplayRow row;
    row.capacity = capacity;
    for (size_t i = 0; i < kReplayPolicies.size(); ++i) {
      row.hits[i] = ReplayPolicy(trace, kReplayPolicies[i], capacity);
    }
    row.markov = ReplayMarkov(trace, capacity, settings.top_k, settings.predict);
    row.belady = ReplayBelady(trace, capacity);
    if (settings.clock) row.timed = TimedRows(trace, capacity, settings);
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string ToText(const ReplayTable& table, const ReplaySettings& settings) {
  std::string text = table.name + ": " + std::to_string(table.requests) + " requests of " +
                     std::to_string(table.distinct) + " experts; K " +
                     std::to_string(settings.top_k) + ", " + std::to_string(settings.predict) +
                     " predicted\n";
  text += Format(
      "%9s    lru %%    lfu %%    arc %%   aged %% markov %% belady %%    gap  lru fetches"
      "  markov fetches\n",
      CapacityHead(settings));
  for (const ReplayRow& row : table.rows) text += RowText(row, table.requests, settings);
  return settings.clock ? text + ClockText(table, settings) : text;
}

ordered_json ToJson(const ReplayTable& table, const ReplaySettings& settings) {
  ordered_json rows = ordered_json::array();
  for (const ReplayRow& row : table.rows) rows.push_back(ToJson(row, settings.in_bytes));
  return {{"trace", table.name},    {"requests", table.requests}, {"distinct", table.distinct},
          {"layers", table.layers}, {"experts", table.experts},   {"passes", table.passes},
          {"rows", std::move(rows)}};
}

SessionTable MakeSessionTable(const std::string& name, const DemandTrace& trace,
                              const std::vector<SessionHistogram>& sessions, size_t first_passes,
                              const ReplaySettings& settings) {
  const DemandTrace first = trace.FirstPasses(first_passes);
  SessionTable table;
  table.name = name;
  table.passes = first.PassStarts().size() - 1;
  table.requests = first.demands.size();
  const size_t predict = settings.predict > 0 ? settings.predict : settings.top_k;
  for (const uint64_t capacity : settings.capacities) {
    SessionPredictor predictor(sessions, first.layers, first.experts, predict);
    SessionRow row;
    row.capacity = capacity;
    row.lru = ReplayPolicy(first, CachePolicyKind::kLru, capacity);
    row.markov = ReplayMarkov(first, capacity, settings.top_k, settings.predict).hits;
    row.sessions = ReplayPredictor(first, capacity, predictor);
    // What is matched does not depend on the cache.
    table.match = predictor.match();
    table.by_overlap = predictor.MostOverlapping(settings.top_k);
    table.rows.push_back(row);
  }
  return table;
}

std::string ToText(const SessionTable& table, const ReplaySettings& settings) {
  std::string text = table.name + ": the first " + std::to_string(table.passes) + " passes, " +
                     std::to_string(table.requests) + " requests; ";
  text += table.match
              ? Format("like session %zu, cosine %.3f", table.match->session, table.match->cosine)
              : std::string("like no session of the store");
  if (table.by_overlap) text += Format("; by overlap, session %zu", *table.by_overlap);
  text +=
      Format("\n%9s    lru %% markov %% tracesim %%   gain  prefetches\n", CapacityHead(settings));
  for (const SessionRow& row : table.rows) {
    const double lru = Percent(row.lru, table.requests);
    const double sessions = Percent(row.sessions.hits, table.requests);
    text += Format("%9s %8.1f %8.1f %10.1f %6.1f %11llu\n",
                   CapacityText(row.capacity, settings).c_str(), lru,
                   Percent(row.markov, table.requests), sessions, sessions - lru,
                   static_cast<unsigned long long>(row.sessions.prefetches));
  }
  return text;
}

ordered_json ToJson(const SessionTable& table, const ReplaySettings& settings) {
  ordered_json rows = ordered_json::array();
  for (const SessionRow& row : table.rows) {
    rows.push_back(
        {{settings.in_bytes ? "bytes" : "entries", row.capacity},
         {"hits", {{"lru", row.lru}, {"markov", row.markov}, {"tracesim", row.sessions.hits}}},
         {"tracesim_prefetches", row.sessions.prefetches}});
  }
  ordered_json json = {{"trace", table.name},        {"passes", table.passes},
                       {"requests", table.requests}, {"match", nullptr},
                       {"by_overlap", nullptr},      {"rows", std::move(rows)}};
  if (table.match) {
    json["match"] = {{"session", table.match->session}, {"cosine", table.match->cosine}};
  }
  if (table.by_overlap) json["by_overlap"] = *table.by_overlap;
  return json;
}

}  // namespace mk::daemon
