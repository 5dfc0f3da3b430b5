// `mk plan`: what a model would need, and how fast it would be. Files and this machine alone: the
// daemon's program does the work, once, in our place.

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/daemon_program.h"
#include "client/quantity.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

struct PlanOptions {
  std::string model;
  std::string precision;
  std::string policy = "aged";
  std::string ram;
  std::string disk_bandwidth;
  std::string disk_latency;
  std::string memory_bandwidth;
  std::string trace;
  std::optional<uint64_t> disk_depth;
  std::optional<uint64_t> cores;
  uint64_t context = 4096;
  uint64_t prompt = 512;
  double skew = 0.6;
  bool measure = false;
  bool json = false;
};

void AddOptions(CommandLine& line, PlanOptions& options) {
  CLI::App& app = line.app();
  app.add_option("MODEL", options.model,
                 "Path, alias or name; k3 and dsv4: the published models, by their dimensions");
  app.add_option("--precision", options.precision, "Arithmetic (default: the daemon's setting)")
      ->type_name("PRECISION")
      ->check(OneOf({"exact", "bf16", "q8"}));
  app.add_option("--ram", options.ram, "Memory for the model (default: the daemon's budget)")
      ->type_name("SIZE");
  app.add_option("--disk-bandwidth", options.disk_bandwidth, "Of the disk (default: measured)")
      ->type_name("RATE");
  app.add_option("--disk-latency", options.disk_latency, "Of a read (default: measured)")
      ->type_name("TIME");
  line.AddNumber("--disk-depth", options.disk_depth, "Reads at once (default 32)", 1, 4096);
  line.AddNumber("--cores", options.cores, "Threads (default: the daemon's)", 1, 1024);
  app.add_option("--memory-bandwidth", options.memory_bandwidth,
                 "Of streaming reads with all cores (default: measured)")
      ->type_name("RATE");
  app.add_option("--trace", options.trace,
                 "Recorded demands (mk run --demand-trace) instead of random ones")
      ->type_name("FILE");
  line.AddReal("--skew", options.skew,
               "Of random demands: Zipf's exponent, 0 for experts that are all wanted alike "
               "(default 0.6)",
               {0, 2, false});
  app.add_option("--policy", options.policy, "Of the cache of experts (default aged)")
      ->type_name("POLICY")
      ->check(OneOf({"lru", "lfu", "arc", "aged"}));
  line.AddNumber("--context", options.context, "Tokens of a sequence (default 4096)", 1, 1 << 24);
  line.AddNumber("--prompt", options.prompt, "Tokens of a prompt (default 512)", 1, 1 << 20);
  app.add_flag("--measure", options.measure,
               "Measure this machine anew, and the model if it fits; keep what was measured");
  app.add_flag("--json", options.json, "One JSON object instead of text");
}

std::string NumberText(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

Status AppendMachine(const PlanOptions& options, std::vector<std::string>& arguments) {
  const auto append = [&](const char* name, std::string value) {
    arguments.emplace_back(name);
    arguments.push_back(std::move(value));
  };
  if (!options.ram.empty()) {
    auto bytes = ParseBytes("--ram", options.ram);
    if (!bytes) return Fail(std::move(bytes.error()));
    append("--ram", std::to_string(*bytes));
  }
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string&>{"--disk-bandwidth", options.disk_bandwidth},
        {"--memory-bandwidth", options.memory_bandwidth}}) {
    if (text.empty()) continue;
    auto rate = ParseRate(name, text);
    if (!rate) return Fail(std::move(rate.error()));
    append(name, std::to_string(*rate));
  }
  if (!options.disk_latency.empty()) {
    auto seconds = ParseSeconds("--disk-latency", options.disk_latency);
    if (!seconds) return Fail(std::move(seconds.error()));
    append("--disk-latency", NumberText(*seconds));
  }
  if (options.disk_depth) append("--disk-depth", std::to_string(*options.disk_depth));
  if (options.cores) append("--cores", std::to_string(*options.cores));
  return {};
}

}  // namespace

int PlanCommand(const Command& command, int argc, char** argv) {
  PlanOptions options;
  CommandLine line(command);
  AddOptions(line, options);
  if (auto code = line.Parse(argc, argv)) return *code;
  if (options.model.empty() && !options.measure) {
    return ReportUsage("a model is missing", "a path or a name, or k3 or dsv4");
  }
  std::vector<std::string> arguments = {"plan",
                                        "--policy",
                                        options.policy,
                                        "--skew",
                                        NumberText(options.skew),
                                        "--context",
                                        std::to_string(options.context),
                                        "--prompt",
                                        std::to_string(options.prompt)};
  if (Status taken = AppendMachine(options, arguments); !taken) return ReportError(taken.error());
  for (const auto& [name, text] :
       {std::pair<const char*, std::string>{"--precision", options.precision},
        {"--trace", options.trace}}) {
    if (!text.empty()) arguments.insert(arguments.end(), {name, text});
  }
  if (options.measure) arguments.emplace_back("--measure");
  if (options.json) arguments.emplace_back("--json");
  if (!options.model.empty()) {
    arguments.emplace_back("--");
    arguments.push_back(ModelArgument(options.model));
  }
  return BecomeDaemonTool(std::move(arguments));
}

}  // namespace mk::client
