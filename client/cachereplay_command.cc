// `mk cachereplay`: recorded demands of experts against caches that were not there. Files alone:
// the daemon's program does the work, once, in our place.

#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "client/commands.h"
#include "client/daemon_program.h"
#include "client/report.h"

namespace mk::client {
namespace {

constexpr uint64_t kMostEntries = uint64_t{1} << 24;
constexpr const char* kUsualEntries = "64,128,256,512,1024,2048,4096";

// "64,128": whole numbers from 1 on.
bool IsListOfEntries(const std::string& text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    uint64_t entries = 0;
    const auto [rest, error] = std::from_chars(at, end, entries);
    if (error != std::errc() || entries == 0 || entries > kMostEntries) return false;
    if (rest == end) return true;
    if (*rest != ',') return false;
    at = rest + 1;
  }
}

}  // namespace

int CacheReplayCommand(const Command& command, int argc, char** argv) {
  std::vector<std::string> traces;
  std::string entries = kUsualEntries;
  uint64_t top_k = 16;
  uint64_t predict = 16;
  bool json = false;
  CommandLine line(command);
  line.app()
      .add_option("TRACE", traces, "Recorded demands: layer and expert, u32 each")
      ->required();
  line.app()
      .add_option("--entries", entries,
                  std::string("Sizes of the caches, in experts (default ") + kUsualEntries + ")")
      ->type_name("N,N,...");
  line.AddNumber("--top-k", top_k, "Experts that a layer picks per token (default 16)", 1, 1 << 16);
  line.AddNumber("--predict", predict, "Experts fetched ahead per layer (default 16)", 0, 1 << 16);
  line.app().add_flag("--json", json, "One JSON object instead of tables");
  if (auto code = line.Parse(argc, argv)) return *code;
  if (!IsListOfEntries(entries)) {
    return ReportUsage("--entries: \"" + entries + "\" is no list of sizes from 1 to " +
                           std::to_string(kMostEntries),
                       "for example --entries 64,1024");
  }
  std::vector<std::string> arguments = {
      "cachereplay",          "--entries", entries, "--top-k", std::to_string(top_k), "--predict",
      std::to_string(predict)};
  if (json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), traces.begin(), traces.end());
  return BecomeDaemonTool(std::move(arguments));
}

}  // namespace mk::client
