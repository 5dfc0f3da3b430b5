#include "daemon/replay_tool.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/tool_output.h"
#include "engine/replay/replay.h"
#include "protocol/error.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::vector<std::string> traces;
  std::vector<size_t> capacities;
  size_t top_k = 0;
  size_t predict = 0;
  bool json = false;
};

constexpr std::array kPolicies = {CachePolicyKind::kLru, CachePolicyKind::kLfu,
                                  CachePolicyKind::kArc, CachePolicyKind::kAged};

// Of one trace in caches of one capacity.
struct Row {
  size_t capacity = 0;
  std::array<uint64_t, kPolicies.size()> hits{};
  MarkovReplay markov;
  uint64_t belady = 0;
};

Row RowOf(const DemandTrace& trace, const Arguments& arguments, size_t capacity) {
  Row row{capacity, {}, {}, 0};
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    row.hits[i] = ReplayPolicy(trace, kPolicies[i], capacity);
  }
  row.markov = ReplayMarkov(trace, capacity, arguments.top_k, arguments.predict);
  row.belady = ReplayBelady(trace, capacity);
  return row;
}

double Percent(uint64_t part, uint64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string HeadText(const std::string& path, const DemandTrace& trace,
                     const Arguments& arguments) {
  return path + ": " + std::to_string(trace.demands.size()) + " requests of " +
         std::to_string(trace.DistinctKeys()) + " experts; K " + std::to_string(arguments.top_k) +
         ", " + std::to_string(arguments.predict) + " predicted\n" +
         "  entries    lru %    lfu %    arc %   aged % markov % belady %    gap  lru fetches"
         "  markov fetches\n";
}

// `gap`: points that the best policy gains over LRU.
std::string RowText(const Row& row, uint64_t requests) {
  std::array<char, 160> text;
  const double lru = Percent(row.hits[0], requests);
  const double best = Percent(row.belady, requests);
  std::snprintf(
      text.data(), text.size(), "%9zu %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %6.1f %12llu %15llu\n",
      row.capacity, lru, Percent(row.hits[1], requests), Percent(row.hits[2], requests),
      Percent(row.hits[3], requests), Percent(row.markov.hits, requests), best, best - lru,
      static_cast<unsigned long long>(requests - row.hits[0]),
      static_cast<unsigned long long>(requests - row.markov.hits + row.markov.prefetches));
  return text.data();
}

ordered_json RowJson(const Row& row) {
  ordered_json hits;
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    hits[std::string(CachePolicyName(kPolicies[i]))] = row.hits[i];
  }
  hits["markov"] = row.markov.hits;
  hits["belady"] = row.belady;
  return {{"entries", row.capacity},
          {"hits", std::move(hits)},
          {"markov_prefetches", row.markov.prefetches}};
}

// A table of one trace, as text or as JSON.
int Replay(const Arguments& arguments, const std::string& path, ordered_json& traces) {
  const Result<DemandTrace> trace = ReadDemandTrace(path);
  if (!trace) return ReportFailure(trace.error());
  ordered_json rows = ordered_json::array();
  std::string text = HeadText(path, *trace, arguments);
  for (const size_t capacity : arguments.capacities) {
    const Row row = RowOf(*trace, arguments, capacity);
    text += RowText(row, trace->demands.size());
    rows.push_back(RowJson(row));
  }
  traces.push_back({{"trace", path},
                    {"requests", trace->demands.size()},
                    {"distinct", trace->DistinctKeys()},
                    {"layers", trace->layers},
                    {"experts", trace->experts},
                    {"rows", std::move(rows)}});
  return arguments.json ? protocol::kExitDone : PrintOut(text);
}

int Run(const Arguments& arguments) {
  ordered_json traces = ordered_json::array();
  for (const std::string& path : arguments.traces) {
    if (const int code = Replay(arguments, path, traces); code != protocol::kExitDone) return code;
  }
  if (!arguments.json) return protocol::kExitDone;
  const ordered_json json = {{"schema", 1},
                             {"top_k", arguments.top_k},
                             {"predict", arguments.predict},
                             {"traces", std::move(traces)}};
  return PrintOut(json.dump() + "\n");
}

}  // namespace

int ReplayTool(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("What `mk cachereplay` runs", "microkimid cachereplay");
  app.add_option("TRACE", arguments.traces)->required();
  app.add_option("--entries", arguments.capacities)->required()->delimiter(',');
  app.add_option("--top-k", arguments.top_k)->required();
  app.add_option("--predict", arguments.predict)->required();
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(arguments);
  } catch (const std::exception& exception) {
    return ReportFailure({ErrorCode::kInternal, exception.what(), ""});
  }
}

}  // namespace mk::daemon
