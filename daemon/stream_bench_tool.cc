#include "daemon/stream_bench_tool.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "daemon/config.h"
#include "daemon/dirs.h"
#include "daemon/model_catalog.h"
#include "daemon/tool_output.h"
#include "engine/bench/stream_bench.h"
#include "protocol/error.h"

namespace mk::daemon {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string model;
  std::vector<double> shares;  // percent
  std::string precision;
  uint64_t latency_us = 0;
  uint64_t bandwidth = 0;  // bytes per second
  uint32_t depth = 1;
  size_t prompt = 0;
  size_t tokens = 0;
  size_t threads = 0;
  bool json = false;
};

StreamBenchPlan PlanOf(const Arguments& arguments) {
  StreamBenchPlan plan;
  plan.shares.clear();
  for (const double percent : arguments.shares) plan.shares.push_back(percent / 100);
  plan.prompt = arguments.prompt;
  plan.tokens = arguments.tokens;
  plan.disk = {arguments.latency_us, arguments.bandwidth, arguments.depth};
  plan.precision = *ParsePrecision(arguments.precision);
  plan.threads =
      arguments.threads > 0 ? arguments.threads : std::max(1u, std::thread::hardware_concurrency());
  return plan;
}

std::string HeadText(const Arguments& arguments, const std::string& path) {
  std::array<char, 256> disk;
  std::snprintf(disk.data(), disk.size(),
                ": %s, a disk of %.1f ms per request, %.0f MB/s and %u requests at once\n",
                arguments.precision.c_str(), static_cast<double>(arguments.latency_us) / 1e3,
                static_cast<double>(arguments.bandwidth) / 1e6, arguments.depth);
  std::string text = path + disk.data();
  text +=
      "way         share clients  tok/s  p50 ms  max ms  hits % reads/tok  MB/tok wait % ahead %"
      " prefill s bits\n";
  return text;
}

std::string ClientsText(const StreamBenchPoint& point) {
  if (point.clients == 1) return "1";
  return std::to_string(point.clients) + (point.same_text ? " same" : " diff");
}

std::string RowText(const StreamBenchPoint& point) {
  std::array<char, 200> text;
  std::snprintf(text.data(), text.size(),
                "%-11s %5.0f%% %6s %6.1f %7.1f %7.1f %7.1f %9.1f %7.2f %6.1f %7.1f %9.2f %s\n",
                point.way.c_str(), point.share * 100, ClientsText(point).c_str(),
                point.tokens_per_s, point.token_p50_ms, point.token_max_ms, point.hit_share * 100,
                point.reads_per_token, point.bytes_per_token / 1e6, point.stall_share * 100,
                point.useful_share * 100, point.prefill_ms / 1e3,
                point.degraded ? "degraded"
                : point.exact  ? "same"
                               : "DIFFER");
  return text.data();
}

ordered_json RowJson(const StreamBenchPoint& point) {
  return {{"way", point.way},
          {"share", point.share},
          {"budget", point.budget},
          {"clients", point.clients},
          {"same_text", point.same_text},
          {"prefill_ms", point.prefill_ms},
          {"prefill_reads_per_expert", point.prefill_reads_per_expert},
          {"tokens_per_s", point.tokens_per_s},
          {"token_p50_ms", point.token_p50_ms},
          {"token_max_ms", point.token_max_ms},
          {"hit_share", point.hit_share},
          {"reads_per_token", point.reads_per_token},
          {"bytes_per_token", point.bytes_per_token},
          {"stall_share", point.stall_share},
          {"useful_share", point.useful_share},
          {"accepted_share", point.accepted_share},
          {"degraded", point.degraded},
          {"exact", point.exact}};
}

int Run(const Arguments& arguments) {
  const auto config = LoadConfig(ConfigFile());
  if (!config) return ReportFailure(config.error());
  const auto path = ResolveModel(arguments.model, config->config, DefaultModelFolders());
  if (!path) return ReportFailure(path.error());
  StreamBenchPlan plan = PlanOf(arguments);
  std::error_code none;
  if (std::filesystem::exists(*path + ".shadows", none)) plan.shadows = *path + ".shadows";
  ordered_json rows = ordered_json::array();
  bool exact = true;
  if (!arguments.json) PrintOut(HeadText(arguments, *path));
  const StreamLoad load = [&](const std::optional<StreamOptions>& stream) {
    LoadOptions options;
    options.precision = plan.precision;
    options.threads = static_cast<int>(plan.threads);
    options.stream = stream;
    return LoadModel(*path, options);
  };
  const Status ran = BenchStream(load, plan, [&](const StreamBenchPoint& point) {
    exact = exact && (point.exact || point.degraded);
    rows.push_back(RowJson(point));
    return arguments.json || PrintOut(RowText(point)) == protocol::kExitDone;
  });
  if (!ran) return ReportFailure(ran.error());
  if (arguments.json) {
    const ordered_json json = {{"schema", 1},
                               {"model", *path},
                               {"precision", arguments.precision},
                               {"disk",
                                {{"latency_us", arguments.latency_us},
                                 {"bytes_per_second", arguments.bandwidth},
                                 {"depth", arguments.depth}}},
                               {"threads", plan.threads},
                               {"prompt", plan.prompt},
                               {"tokens", plan.tokens},
                               {"points", std::move(rows)}};
    if (const int code = PrintOut(json.dump() + "\n"); code != protocol::kExitDone) return code;
  }
  return exact ? protocol::kExitDone : protocol::kExitFailed;
}

}  // namespace

int StreamBenchTool(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("What `mk bench stream` runs", "microkimid bench-stream");
  app.add_option("MODEL", arguments.model)->required();
  app.add_option("--shares", arguments.shares)->required()->delimiter(',');
  app.add_option("--precision", arguments.precision)->required();
  app.add_option("--latency-us", arguments.latency_us)->required();
  app.add_option("--bandwidth", arguments.bandwidth)->required();
  app.add_option("--depth", arguments.depth)->required();
  app.add_option("--prompt", arguments.prompt)->required();
  app.add_option("--tokens", arguments.tokens)->required();
  app.add_option("--threads", arguments.threads)->required();
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(arguments);
  } catch (const std::exception& exception) {
    return ReportFailure({ErrorCode::kInternal, exception.what(), ""});
  }
}

}  // namespace mk::daemon
