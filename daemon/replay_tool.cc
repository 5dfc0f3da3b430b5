#include "daemon/replay_tool.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/replay_table.h"
#include "daemon/tool_output.h"
#include "engine/base/file.h"
#include "engine/format/mkim_file.h"
#include "protocol/error.h"
#include "routing/route_store.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxStoreBytes = uint64_t{256} << 20;

struct Arguments {
  std::vector<std::string> traces;
  std::vector<uint64_t> entries;
  std::vector<uint64_t> budgets;
  uint64_t expert_bytes = 0;  // of every expert
  std::string model;          // or: as in this file
  std::string store;
  size_t first_passes = 50;
  ReplaySettings settings;
  ReplayClock clock;
  bool json = false;
};

// Where nothing else is asked for.
const std::vector<uint64_t> kUsualEntries = {64, 128, 256, 512, 1024, 2048, 4096};
const std::vector<uint64_t> kUsualOfSessions = {128, 256, 512, 1024};

Error With(const std::string& path, Error error) {
  error.message = path + ": " + error.message;
  return error;
}

// Bytes of the experts of a model that a trace speaks of.
Result<std::vector<uint64_t>> SizesIn(const MkimFile& file, const DemandTrace& trace) {
  std::vector<uint64_t> sizes(trace.keys());
  for (size_t key = 0; key < sizes.size(); ++key) {
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp}) {
      const auto layer = static_cast<uint32_t>(key / trace.experts);
      const auto expert = static_cast<uint32_t>(key % trace.experts);
      const TensorEntry* entry = file.Expert(layer, expert, part);
      if (entry != nullptr) sizes[key] += entry->size;
    }
  }
  for (const ExpertKey key : trace.demands) {
    if (sizes[key] > 0) continue;
    return Fail(ErrorCode::kIncompatible,
                "the trace asks for expert " + std::to_string(trace.expert_of(key)) + " of layer " +
                    std::to_string(trace.layer_of(key)) + ", which " + file.path() +
                    " does not have",
                "give the model that the trace was recorded with");
  }
  return sizes;
}

// Gives a trace the sizes that budgets are counted in.
Status TakeSizes(const Arguments& arguments, const MkimFile* model, DemandTrace& trace) {
  if (!arguments.settings.in_bytes) return {};
  if (model == nullptr) {
    trace.sizes.assign(trace.keys(), arguments.expert_bytes);
    return {};
  }
  auto sizes = SizesIn(*model, trace);
  if (!sizes) return Fail(sizes.error());
  trace.sizes = std::move(*sizes);
  return {};
}

Result<std::vector<SessionHistogram>> ReadSessions(const std::string& path) {
  auto bytes = ReadWholeFile(path, kMaxStoreBytes);
  if (!bytes) return Fail(bytes.error());
  const auto store = routing::RouteStore::Parse(*bytes);
  if (!store) {
    return Fail(ErrorCode::kCorrupt, path + ": " + store.error().message, store.error().hint);
  }
  if (!store->whole()) {
    return Fail(ErrorCode::kCorrupt,
                path + ": its records are damaged from number " +
                    std::to_string(store->sessions().size() + 1) + " on",
                "make it anew with mk routebuild");
  }
  std::vector<SessionHistogram> sessions;
  for (const routing::RouteSession& session : store->sessions()) {
    SessionHistogram& histogram = sessions.emplace_back();
    for (const auto& layer : session.layers) {
      histogram.layers.emplace_back(layer.begin(), layer.end());
    }
  }
  return sessions;
}

// All tables, as text or as JSON.
class Report {
 public:
  explicit Report(const Arguments& arguments) : arguments_(arguments) {}

  void Add(const std::string& name, const DemandTrace& trace, const char* key) {
    const ReplaySettings& settings = arguments_.settings;
    const ReplayTable table = MakeReplayTable(name, trace, settings);
    if (arguments_.json) {
      if (key == nullptr) {
        json_["traces"].push_back(ToJson(table, settings));
      } else {
        json_[key] = ToJson(table, settings);
      }
    } else {
      text_ += ToText(table, settings);
    }
  }

  void AddSessions(const std::string& name, const DemandTrace& trace,
                   const std::vector<SessionHistogram>& sessions) {
    ReplaySettings settings = arguments_.settings;
    if (arguments_.entries.empty() && !settings.in_bytes) settings.capacities = kUsualOfSessions;
    const SessionTable table =
        MakeSessionTable(name, trace, sessions, arguments_.first_passes, settings);
    if (arguments_.json) {
      json_["sessions"].push_back(ToJson(table, settings));
    } else {
      text_ += ToText(table, settings);
    }
  }

  int Print() {
    if (!arguments_.json) return PrintOut(text_);
    ordered_json json = {{"schema", 1},
                         {"top_k", arguments_.settings.top_k},
                         {"predict", arguments_.settings.predict}};
    json.update(json_);
    return PrintOut(json.dump() + "\n");
  }

 private:
  const Arguments& arguments_;
  std::string text_;
  ordered_json json_;
};

Result<std::vector<DemandTrace>> ReadTraces(const Arguments& arguments, const MkimFile* model) {
  std::vector<DemandTrace> traces;
  for (const std::string& path : arguments.traces) {
    auto trace = ReadDemandTrace(path);
    if (!trace) return Fail(trace.error());
    if (Status sized = TakeSizes(arguments, model, *trace); !sized) {
      return Fail(With(path, sized.error()));
    }
    traces.push_back(std::move(*trace));
  }
  return traces;
}

int Run(const Arguments& arguments) {
  std::shared_ptr<const MkimFile> model;
  if (!arguments.model.empty()) {
    auto opened = MkimFile::Open(arguments.model);
    if (!opened) return ReportFailure(opened.error());
    model = std::move(*opened);
  }
  std::vector<SessionHistogram> sessions;
  if (!arguments.store.empty()) {
    auto read = ReadSessions(arguments.store);
    if (!read) return ReportFailure(read.error());
    sessions = std::move(*read);
  }
  const auto traces = ReadTraces(arguments, model.get());
  if (!traces) return ReportFailure(traces.error());
  Report report(arguments);
  for (size_t i = 0; i < traces->size(); ++i) {
    report.Add(arguments.traces[i], (*traces)[i], nullptr);
    if (!arguments.store.empty()) report.AddSessions(arguments.traces[i], (*traces)[i], sessions);
  }
  if (traces->size() > 1) {
    DemandTrace all = Interleave(*traces);
    if (Status sized = TakeSizes(arguments, model.get(), all); !sized) {
      return ReportFailure(sized.error());
    }
    report.Add("all together", all, "together");
  }
  return report.Print();
}

}  // namespace

int ReplayTool(int argc, const char* const* argv) {
  Arguments arguments;
  double latency = 0;
  double bandwidth = 0;
  CLI::App app("What `mk cachereplay` runs", "microkimid cachereplay");
  app.add_option("TRACE", arguments.traces)->required();
  auto* entries = app.add_option("--entries", arguments.entries)->delimiter(',');
  auto* budgets = app.add_option("--budgets", arguments.budgets)->delimiter(',')->excludes(entries);
  auto* size = app.add_option("--expert-bytes", arguments.expert_bytes)
                   ->needs(budgets)
                   ->check(CLI::PositiveNumber);
  app.add_option("--model", arguments.model)->needs(budgets)->excludes(size);
  app.add_option("--top-k", arguments.settings.top_k)->required();
  app.add_option("--predict", arguments.settings.predict)->required();
  app.add_option("--tracesim", arguments.store);
  app.add_option("--first", arguments.first_passes);
  auto* disk = app.add_option("--bandwidth", bandwidth)->needs(budgets)->check(CLI::PositiveNumber);
  app.add_option("--latency", latency)->needs(disk)->check(CLI::NonNegativeNumber);
  app.add_option("--depth", arguments.clock.disk.depth)->needs(disk)->check(CLI::PositiveNumber);
  app.add_option("--compute", arguments.clock.compute_s)
      ->needs(disk)
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  ReplaySettings& settings = arguments.settings;
  settings.in_bytes = !arguments.budgets.empty();
  settings.capacities = settings.in_bytes           ? arguments.budgets
                        : arguments.entries.empty() ? kUsualEntries
                                                    : arguments.entries;
  if (settings.in_bytes && arguments.model.empty() && arguments.expert_bytes == 0) {
    return ReportFailure({ErrorCode::kInvalidArgument, "budgets need sizes of experts", ""});
  }
  if (bandwidth > 0) {
    arguments.clock.disk.latency_s = latency;
    arguments.clock.disk.bytes_per_s = bandwidth;
    settings.clock = arguments.clock;
  }
  try {
    return Run(arguments);
  } catch (const std::exception& exception) {
    return ReportFailure({ErrorCode::kInternal, exception.what(), ""});
  }
}

}  // namespace mk::daemon
