// `mk cachereplay`: recorded demands of experts against caches that were not there. Files alone:
// the daemon's program does the work, once, in our place.

#include <array>
#include <charconv>
#include <cstdio>
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
using protocol::Result;
using protocol::Status;

constexpr uint64_t kMostEntries = uint64_t{1} << 24;

struct ReplayOptions {
  std::vector<std::string> traces;
  std::string entries;
  std::string budgets;
  std::string expert_bytes;
  std::string model;
  std::string store;
  std::string latency;
  std::string bandwidth;
  std::string compute;
  uint64_t depth = 32;
  uint64_t top_k = 16;
  uint64_t predict = 16;
  uint64_t first = 50;
  bool json = false;
};

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', begin)) {
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// "64,128": whole numbers from 1 on.
bool IsListOfEntries(const std::string& text) {
  for (const std::string& part : SplitList(text)) {
    uint64_t entries = 0;
    const char* const end = part.data() + part.size();
    const auto [rest, error] = std::from_chars(part.data(), end, entries);
    if (error != std::errc() || rest != end || entries == 0 || entries > kMostEntries) return false;
  }
  return true;
}

void AddOptions(CommandLine& line, ReplayOptions& options) {
  CLI::App& app = line.app();
  app.add_option("TRACE", options.traces,
                 "Recorded demands: layer and expert, u32 each; several are also replayed "
                 "together, a pass of each in turn")
      ->required();
  auto* entries = app.add_option("--entries", options.entries,
                                 "Sizes of the caches, in experts (default "
                                 "64,128,256,512,1024,2048,4096)")
                      ->type_name("N,N,...");
  auto* budgets = app.add_option("--budgets", options.budgets,
                                 "Sizes of the caches in bytes; needs --expert-bytes or --model")
                      ->type_name("SIZE,SIZE,...")
                      ->excludes(entries);
  auto* size = app.add_option("--expert-bytes", options.expert_bytes, "Size of every expert")
                   ->type_name("SIZE")
                   ->needs(budgets);
  app.add_option("--model", options.model, "Sizes of experts as in this model file")
      ->type_name("FILE")
      ->needs(budgets)
      ->excludes(size);
  line.AddNumber("--top-k", options.top_k, "Experts that a layer picks per token (default 16)", 1,
                 1 << 16);
  line.AddNumber("--predict", options.predict, "Experts fetched ahead per layer (default 16)", 0,
                 1 << 16);
  app.add_option("--tracesim", options.store,
                 "Also fetch ahead what a similar session of this store asked for")
      ->type_name("STORE");
  line.AddNumber("--first", options.first, "--tracesim: passes that are replayed (default 50)", 1,
                 uint64_t{1} << 32);
  auto* disk = app.add_option("--bandwidth", options.bandwidth,
                              "Tell how long passes wait for a disk of this bandwidth")
                   ->type_name("RATE")
                   ->needs(budgets);
  app.add_option("--latency", options.latency, "Of a read (default 100us)")
      ->type_name("TIME")
      ->needs(disk);
  line.AddNumber("--depth", options.depth, "Reads at once (default 32)", 1, 4096);
  app.add_option("--compute", options.compute,
                 "What a pass takes beside waiting, while reads ahead go on (default 0s)")
      ->type_name("TIME")
      ->needs(disk);
  app.add_flag("--json", options.json, "One JSON object instead of tables");
}

std::string NumberText(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

// What the daemon's program is to be told of sizes.
Status AppendSizes(const ReplayOptions& options, std::vector<std::string>& arguments) {
  if (!options.entries.empty()) {
    if (!IsListOfEntries(options.entries)) {
      return Fail(UsageError("--entries: \"" + options.entries +
                                 "\" is no list of sizes from 1 to " + std::to_string(kMostEntries),
                             "for example --entries 64,1024"));
    }
    arguments.insert(arguments.end(), {"--entries", options.entries});
  }
  if (options.budgets.empty()) return {};
  if (options.expert_bytes.empty() && options.model.empty()) {
    return Fail(UsageError("--budgets are bytes: how large are experts?",
                           "add --expert-bytes SIZE, or --model FILE"));
  }
  std::string budgets;
  for (const std::string& part : SplitList(options.budgets)) {
    auto bytes = ParseBytes("--budgets", part);
    if (!bytes) return Fail(std::move(bytes.error()));
    budgets += (budgets.empty() ? "" : ",") + std::to_string(*bytes);
  }
  arguments.insert(arguments.end(), {"--budgets", budgets});
  if (!options.model.empty()) {
    arguments.insert(arguments.end(), {"--model", options.model});
    return {};
  }
  auto bytes = ParseBytes("--expert-bytes", options.expert_bytes);
  if (!bytes) return Fail(std::move(bytes.error()));
  arguments.insert(arguments.end(), {"--expert-bytes", std::to_string(*bytes)});
  return {};
}

Status AppendClock(const ReplayOptions& options, std::vector<std::string>& arguments) {
  if (options.bandwidth.empty()) return {};
  auto bandwidth = ParseRate("--bandwidth", options.bandwidth);
  if (!bandwidth) return Fail(std::move(bandwidth.error()));
  auto latency = ParseSeconds("--latency", options.latency.empty() ? "100us" : options.latency);
  if (!latency) return Fail(std::move(latency.error()));
  auto compute = ParseSeconds("--compute", options.compute.empty() ? "0s" : options.compute);
  if (!compute) return Fail(std::move(compute.error()));
  arguments.insert(arguments.end(),
                   {"--bandwidth", std::to_string(*bandwidth), "--latency", NumberText(*latency),
                    "--compute", NumberText(*compute), "--depth", std::to_string(options.depth)});
  return {};
}

}  // namespace

int CacheReplayCommand(const Command& command, int argc, char** argv) {
  ReplayOptions options;
  CommandLine line(command);
  AddOptions(line, options);
  if (auto code = line.Parse(argc, argv)) return *code;
  for (const auto& [option, needed] :
       {std::pair{"--depth", "--bandwidth"}, std::pair{"--first", "--tracesim"}}) {
    if (line.app().count(option) == 0 || line.app().count(needed) > 0) continue;
    return ReportUsage(std::string(option) + " requires " + needed,
                       "mk cachereplay --help tells what it does");
  }
  std::vector<std::string> arguments = {"cachereplay",
                                        "--top-k",
                                        std::to_string(options.top_k),
                                        "--predict",
                                        std::to_string(options.predict),
                                        "--first",
                                        std::to_string(options.first)};
  Status taken = AppendSizes(options, arguments);
  if (taken) taken = AppendClock(options, arguments);
  if (!taken) return ReportError(taken.error());
  if (!options.store.empty()) arguments.insert(arguments.end(), {"--tracesim", options.store});
  if (options.json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), options.traces.begin(), options.traces.end());
  return BecomeDaemonTool(std::move(arguments));
}

}  // namespace mk::client
