// `mk cmsinfo`

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "client/atomic_write.h"
#include "client/commands.h"
#include "client/input.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/text_table.h"
#include "routing/count_sketch.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;
using routing::CountSketch;

constexpr size_t kShown = 50;  // pairs

protocol::Result<CountSketch> ReadSketch(const std::string& path) {
  // Other files that are not too large are told apart by what is in them.
  auto bytes = ReadWholeFile(path, size_t{64} << 20);
  if (!bytes) {
    if (bytes.error().code == protocol::ErrorCode::kBadRequest) {
      bytes.error().hint = "a sketch has " + std::to_string(CountSketch::kFileBytes) + " bytes";
    }
    return protocol::Fail(std::move(bytes.error()));
  }
  auto sketch = CountSketch::Parse(*bytes);
  if (!sketch) sketch.error().message = path + ": " + sketch.error().message;
  return sketch;
}

protocol::Result<CountSketch> ReadAll(const std::vector<std::string>& paths) {
  CountSketch all;
  for (const std::string& path : paths) {
    auto sketch = ReadSketch(path);
    if (!sketch) return sketch;
    all.Merge(*sketch);
  }
  return all;
}

uint64_t SumOf(const std::vector<routing::Estimated>& ranked) {
  return std::accumulate(ranked.begin(), ranked.end(), uint64_t{0},
                         [](uint64_t sum, const auto& one) { return sum + one.count; });
}

std::string Percent(double share) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.2f %%", 100 * share);
  return text.data();
}

std::string InfoText(const std::string& name, const CountSketch& sketch) {
  const auto ranked = Ranked(sketch);
  std::string text = name + ": MKCMS001, 4 rows of 4096 counters, " +
                     std::to_string(sketch.layers()) + " layers, " +
                     std::to_string(sketch.experts()) + " experts\n";
  text += "pairs touched     " + std::to_string(ranked.size()) + "\n";
  text += "sum of estimates  " + std::to_string(SumOf(ranked)) + "\n";
  text += "total             " + std::to_string(sketch.total()) + "\n";
  if (ranked.empty()) return text;
  TextTable top{Align::kRight, Align::kRight, Align::kRight};
  top.Add({"LAYER", "EXPERT", "COUNT"});
  for (size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    top.Add({std::to_string(ranked[i].pick.layer), std::to_string(ranked[i].pick.expert),
             std::to_string(ranked[i].count)});
  }
  TextTable coverage{Align::kRight, Align::kRight, Align::kRight};
  coverage.Add({"OF PAIRS", "PAIRS", "OF PICKS"});
  for (const routing::Coverage& one : CoverageOf(ranked)) {
    coverage.Add(
        {std::to_string(one.percent) + " %", std::to_string(one.pairs), Percent(one.share)});
  }
  return text + "\n" + top.Text() + "\n" + coverage.Text();
}

Json InfoJson(const std::vector<std::string>& paths, const CountSketch& sketch) {
  const auto ranked = Ranked(sketch);
  Json pairs = Json::array();
  for (const routing::Estimated& one : ranked) {
    pairs.push_back({{"layer", one.pick.layer}, {"expert", one.pick.expert}, {"count", one.count}});
  }
  Json coverage = Json::array();
  for (const routing::Coverage& one : CoverageOf(ranked)) {
    coverage.push_back({{"percent", one.percent}, {"pairs", one.pairs}, {"share", one.share}});
  }
  return {{"files", paths},
          {"layers", sketch.layers()},
          {"experts", sketch.experts()},
          {"pairs_touched", ranked.size()},
          {"sum_of_estimates", SumOf(ranked)},
          {"total", sketch.total()},
          {"pairs", std::move(pairs)},
          {"coverage", std::move(coverage)}};
}

}  // namespace

int CmsinfoCommand(const Command& command, int argc, char** argv) {
  std::vector<std::string> paths;
  std::string merged;
  bool json = false;
  CommandLine line(command);
  line.app().add_option("FILE", paths, "Sketches; several are looked at as one")->required();
  line.app()
      .add_option("--merge", merged, "Write the sum of the sketches to this file")
      ->type_name("FILE");
  line.app().add_flag("--json", json, "One JSON object instead of text");
  if (auto code = line.Parse(argc, argv)) return *code;
  auto sketch = ReadAll(paths);
  if (!sketch) return ReportError(sketch.error(), json);
  if (!merged.empty()) {
    auto written = WriteFileAtomically(merged, sketch->Serialize());
    if (!written) return ReportError(written.error(), json);
  }
  Output output(STDOUT_FILENO);
  const std::string name =
      paths.size() == 1 ? Printable(paths.front()) : std::to_string(paths.size()) + " files";
  output.Write(json ? JsonLine(InfoJson(paths, *sketch)) : InfoText(name, *sketch));
  if (!json && !merged.empty()) output.Write("\nmerged into " + Printable(merged) + "\n");
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
