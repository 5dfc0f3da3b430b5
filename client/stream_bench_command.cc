// `mk bench stream`: what streaming the experts of a model costs. The daemon's program does the
// work in our place, so that no other request disturbs it.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "client/commands.h"
#include "client/daemon_program.h"
#include "client/report.h"

namespace mk::client {
namespace {

constexpr const char* kUsualShares = "10,25,50";

// "10,25": percentages above 0 up to 100.
bool IsListOfShares(const std::string& text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    double share = 0;
    const auto [rest, error] = std::from_chars(at, end, share);
    if (error != std::errc() || !(share > 0 && share <= 100)) return false;
    if (rest == end) return true;
    if (*rest != ',') return false;
    at = rest + 1;
  }
}

std::string Micros(double milliseconds) {
  return std::to_string(std::llround(milliseconds * 1e3));
}

}  // namespace

int StreamBenchCommand(int argc, char** argv) {
  const Command command{
      "bench stream", "Measure what it costs to stream the experts of a model from a slow disk",
      "  mk build --preset micro -o micro.bin && mk bench stream ./micro.bin\n"
      "  mk bench stream ./micro.bin --shares 10 --latency 0 --bandwidth 0 --json | jq .points",
      nullptr};
  std::string model;
  std::string shares = kUsualShares;
  std::string precision = "q8";
  double latency_ms = 2;
  double bandwidth_mb = 500;
  uint64_t depth = 32;
  uint64_t prompt = 128;
  uint64_t tokens = 16;
  uint64_t threads = 0;
  bool json = false;
  CommandLine line(command);
  line.app().add_option("MODEL", model, "Path, alias or name (default: the default model)");
  line.app()
      .add_option("--shares", shares,
                  std::string("Memory for experts, in percent of what all of them take (default ") +
                      kUsualShares + ")")
      ->type_name("PERCENT,...");
  line.app()
      .add_option("--precision", precision, "Arithmetic: exact, bf16, q8 (default)")
      ->type_name("PRECISION")
      ->check(OneOf({"exact", "bf16", "q8"}));
  line.AddReal("--latency", latency_ms,
               "Milliseconds that the disk takes for a request (default 2)", {0, 10'000});
  line.AddReal("--bandwidth", bandwidth_mb, "MB/s of the disk (default 500); 0: no limit",
               {0, 1'000'000});
  line.AddNumber("--depth", depth, "Requests that the disk works on at once (default 32)", 1, 4096);
  line.AddNumber("--prompt", prompt, "Tokens that are read first (default 128)", 1, 1 << 16);
  line.AddNumber("-n,--tokens", tokens, "Tokens that are measured (default 16)", 1, 1 << 16);
  line.AddNumber("--threads", threads, "Threads (default: one per core)", 1, 1024);
  line.app().add_flag("--json", json, "One JSON object instead of text");
  if (auto code = line.Parse(argc, argv)) return *code;
  if (!IsListOfShares(shares)) {
    return ReportUsage("--shares: \"" + shares + "\" is no list of percentages above 0 up to 100",
                       "for example --shares 10,25");
  }
  std::vector<std::string> arguments = {"bench-stream",
                                        "--shares",
                                        shares,
                                        "--precision",
                                        precision,
                                        "--latency-us",
                                        Micros(latency_ms),
                                        "--bandwidth",
                                        Micros(bandwidth_mb * 1e3),
                                        "--depth",
                                        std::to_string(depth),
                                        "--prompt",
                                        std::to_string(prompt),
                                        "--tokens",
                                        std::to_string(tokens),
                                        "--threads",
                                        std::to_string(threads)};
  if (json) arguments.emplace_back("--json");
  arguments.emplace_back("--");
  arguments.push_back(ModelArgument(model));
  return BecomeDaemonTool(std::move(arguments));
}

}  // namespace mk::client
