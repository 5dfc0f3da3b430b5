// `mk routestats`

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "client/atomic_write.h"
#include "client/commands.h"
#include "client/expert_source.h"
#include "client/json_format.h"
#include "client/look_text.h"
#include "client/printable.h"
#include "client/report.h"
#include "client/route_files.h"
#include "client/routes_picture.h"
#include "client/text_table.h"
#include "routing/load.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;

struct Layer {
  uint32_t layer = 0;
  routing::Load load;
  std::vector<uint64_t> counts;  // [expert]
};

std::vector<Layer> LayersOf(const protocol::ExpertTally& tally) {
  std::vector<Layer> layers;
  for (const protocol::ExpertCounts& one : tally.counts) {
    auto counts = DenseCounts(tally, one);
    const routing::Load load = routing::LoadOf(counts);
    layers.push_back({one.layer, load, std::move(counts)});
  }
  return layers;
}

std::string Decimal(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3f", value);
  return text.data();
}

// The five that were picked most often, equal ones by id: "E5 14.9 %, E7 12.0 %, ...".
std::string BusiestText(const Layer& layer) {
  std::vector<size_t> order(layer.counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layer.counts[a] > layer.counts[b]; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(5, order.size()); ++i) {
    const uint64_t count = layer.counts[order[i]];
    if (count == 0) break;
    text += (i > 0 ? ", E" : "E") + std::to_string(order[i]) + " " +
            PercentText(static_cast<double>(count) / static_cast<double>(layer.load.picks));
  }
  return text;
}

std::string StatsText(const CountedExperts& counted) {
  const protocol::ExpertTally& tally = counted.tally;
  std::string text = "model    " + Printable(counted.model) + "\ncounted  " + counted.about +
                     "\nexperts  " + std::to_string(tally.top_k) + " of " +
                     std::to_string(tally.experts) + " per token and layer\n\n";
  TextTable table{Align::kRight, Align::kRight, Align::kRight,
                  Align::kRight, Align::kRight, Align::kLeft};
  table.Add({"LAYER", "PICKS", "ENTROPY", "GINI", "UNUSED", "BUSIEST"});
  for (const Layer& layer : LayersOf(tally)) {
    table.Add({std::to_string(layer.layer), std::to_string(layer.load.picks),
               Decimal(layer.load.entropy), Decimal(layer.load.gini),
               std::to_string(layer.load.unused), BusiestText(layer)});
  }
  return text + table.Text();
}

Json StatsJson(const CountedExperts& counted) {
  Json layers = Json::array();
  for (const Layer& layer : LayersOf(counted.tally)) {
    layers.push_back({{"layer", layer.layer},
                      {"picks", layer.load.picks},
                      {"entropy", layer.load.entropy},
                      {"gini", layer.load.gini},
                      {"unused", layer.load.unused},
                      {"counts", layer.counts}});
  }
  return {{"model", counted.model},         {"fingerprint", counted.fingerprint},
          {"tokens", counted.tally.tokens}, {"experts", counted.tally.experts},
          {"top_k", counted.tally.top_k},   {"layers", std::move(layers)}};
}

}  // namespace

int RoutestatsCommand(const Command& command, int argc, char** argv) {
  ExpertSource source(20);
  std::string out;
  bool json = false;
  CommandLine line(command);
  source.Add(line);
  line.app()
      .add_option("-o,--out", out, "Write a sketch of the counts: MKCMS001")
      ->type_name("FILE");
  line.app().add_flag("--json", json, "One JSON object instead of text");
  if (auto code = line.Parse(argc, argv)) return *code;
  protocol::Status taken = source.Take(line);
  if (taken && !out.empty()) taken = CheckWritable(out);
  if (!taken) return ReportError(taken.error());

  Output output(STDOUT_FILENO);
  auto counted = source.Count(output, !json);
  if (!counted) return ReportError(counted.error(), json);
  if (!out.empty()) {
    auto written = WriteFileAtomically(out, SketchOf(counted->tally).Serialize());
    if (!written) return ReportError(written.error(), json);
  }
  if (json) {
    Json told = StatsJson(*counted);
    if (!out.empty()) told["sketch"] = out;
    output.Write(JsonLine(told));
  } else {
    output.Write(StatsText(*counted));
    if (!out.empty()) output.Write("\nsketch   " + Printable(out) + "\n");
  }
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
