#include "client/routes_picture.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "client/look_text.h"
#include "client/svg.h"
#include "routing/load.h"

namespace mk::client {
namespace {

constexpr double kLeft = 76;
constexpr double kTop = 108;
constexpr std::string_view kQuiet = "#66717c";
// Times the even share at which shades end.
constexpr double kFullShade = 4;
// Beyond so many cells they have no hover of their own: the file would not open any more.
constexpr size_t kMostHovers = 8192;

std::string Decimal(double value, int digits) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

struct Layout {
  explicit Layout(const protocol::ExpertTally& tally)
      : rows(tally.counts.size()), experts(tally.experts) {
    const auto count = static_cast<double>(experts);
    cell_width = std::clamp(960 / count, 1.25, 22.0);
    cell_height = rows <= 12 ? 24 : rows <= 48 ? 14 : 9;
    map_width = std::max(320.0, count * cell_width);
    bars = kLeft + map_width + 24;
    bottom = kTop + static_cast<double>(rows) * cell_height;
    width = bars + 250;
    height = bottom + 110;
  }
  double x(size_t expert) const { return kLeft + static_cast<double>(expert) * cell_width; }
  double y(size_t row) const { return kTop + static_cast<double>(row) * cell_height; }

  size_t rows;
  size_t experts;
  double cell_width;
  double cell_height;
  double map_width;
  double bars;  // x of what stands beside the map
  double bottom;
  double width;
  double height;
};

// Of an even share.
double LiftOf(uint64_t count, const routing::Load& load, size_t experts) {
  if (load.picks == 0) return 0;
  return static_cast<double>(count) * static_cast<double>(experts) /
         static_cast<double>(load.picks);
}

void DrawCells(Svg& svg, const Layout& layout, size_t row, uint32_t layer,
               const std::vector<uint64_t>& counts, const routing::Load& load) {
  const double gap = layout.cell_width > 5 ? 0.6 : 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] == 0) continue;
    const double lift = LiftOf(counts[expert], load, layout.experts);
    svg.Begin("layer " + std::to_string(layer) + ", expert " + std::to_string(expert) + "\n" +
              std::to_string(counts[expert]) + " picks, " +
              PercentText(static_cast<double>(counts[expert]) / static_cast<double>(load.picks)) +
              "\n" + Decimal(lift, 2) + " times an even share");
    svg.AddRect(layout.x(expert), layout.y(row), layout.cell_width - gap, layout.cell_height - 1,
                HexOf(Shade(lift / kFullShade)));
    svg.End();
  }
}

// The cells of a layer, those of one shade in one path.
void DrawPaths(Svg& svg, const Layout& layout, size_t row, const std::vector<uint64_t>& counts,
               const routing::Load& load) {
  constexpr double kShades = 48;
  std::map<int, std::string> paths;
  const std::string shape = "h" + Coordinate(layout.cell_width) + "v" +
                            Coordinate(layout.cell_height - 1) + "h-" +
                            Coordinate(layout.cell_width) + "z";
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] == 0) continue;
    const double shade = std::min(1.0, LiftOf(counts[expert], load, layout.experts) / kFullShade);
    paths[static_cast<int>(shade * kShades)] +=
        "M" + Coordinate(layout.x(expert)) + " " + Coordinate(layout.y(row)) + shape;
  }
  for (const auto& [shade, path] : paths) svg.AddPath(path, HexOf(Shade(shade / kShades)));
}

void DrawLoad(Svg& svg, const Layout& layout, size_t row, uint32_t layer,
              const routing::Load& load) {
  constexpr double kBar = 90;
  const double y = layout.y(row);
  const double height = layout.cell_height - 1;
  const double middle = y + layout.cell_height / 2 + 3.6;
  const double size = std::min(11.0, layout.cell_height * 0.85);
  svg.Begin("layer " + std::to_string(layer) + "\nentropy " + Decimal(load.entropy, 3) +
            " of an even load\nGini coefficient " + Decimal(load.gini, 3) + "\n" +
            std::to_string(load.unused) + " of " + std::to_string(layout.experts) +
            " experts unused");
  svg.AddRect(layout.bars, y, kBar, height, "#eef1f4");
  svg.AddRect(layout.bars, y, kBar * load.entropy, height, "#7fa8c4");
  svg.AddText(layout.bars + kBar + 34, middle, Decimal(load.entropy, 2),
              {.anchor = "end", .size = size});
  svg.AddText(layout.bars + kBar + 84, middle, Decimal(load.gini, 2),
              {.anchor = "end", .size = size});
  svg.AddText(layout.bars + kBar + 140, middle, std::to_string(load.unused),
              {.anchor = "end", .size = size, .fill = load.unused > 0 ? "#b4531b" : "#222222"});
  svg.End();
}

void DrawAxes(Svg& svg, const Layout& layout, const protocol::ExpertTally& tally) {
  size_t step = 1;
  for (const size_t one : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    step = one;
    if (static_cast<double>(step) * layout.cell_width >= 30) break;
  }
  for (size_t expert = 0; expert < layout.experts; expert += step) {
    const double x = layout.x(expert) + layout.cell_width / 2;
    svg.AddLine(x, layout.bottom + 2, x, layout.bottom + 6, "#9aa5b1");
    svg.AddText(x, layout.bottom + 18, std::to_string(expert),
                {.anchor = "middle", .size = 10, .fill = kQuiet});
  }
  svg.AddText(kLeft + layout.map_width / 2, layout.bottom + 36, "expert",
              {.anchor = "middle", .size = 11, .fill = kQuiet});
  const double size = std::min(11.0, layout.cell_height * 0.85);
  for (size_t row = 0; row < layout.rows; ++row) {
    svg.AddText(kLeft - 10, layout.y(row) + layout.cell_height / 2 + 3.6,
                std::to_string(tally.counts[row].layer), {.anchor = "end", .size = size});
  }
  svg.AddText(22, (kTop + layout.bottom) / 2, "layer",
              {.anchor = "middle", .size = 11, .fill = kQuiet, .turn = -90});
  svg.AddText(layout.bars, kTop - 8, "load entropy", {.size = 11, .fill = kQuiet});
  svg.AddText(layout.bars + 174, kTop - 8, "Gini", {.anchor = "end", .size = 11, .fill = kQuiet});
  svg.AddText(layout.bars + 230, kTop - 8, "unused", {.anchor = "end", .size = 11, .fill = kQuiet});
}

}  // namespace

std::vector<uint64_t> DenseCounts(const protocol::ExpertTally& tally,
                                  const protocol::ExpertCounts& layer) {
  std::vector<uint64_t> counts(tally.experts);
  for (size_t i = 0; i < std::min(layer.experts.size(), layer.counts.size()); ++i) {
    const auto expert = static_cast<size_t>(layer.experts[i]);
    if (expert < counts.size()) counts[expert] = layer.counts[i];
  }
  return counts;
}

std::string Draw(const RoutesPicture& picture) {
  const protocol::ExpertTally& tally = picture.tally;
  const Layout layout(tally);
  Svg svg(layout.width, layout.height, "Experts of " + picture.model);
  svg.AddText(24, 32, "Use of experts", {.size = 18, .bold = true});
  svg.AddText(24, 52, picture.model + "  ·  " + picture.about, {.size = 11.5, .fill = kQuiet});
  svg.AddText(24, 70,
              std::to_string(tally.top_k) + " of " + std::to_string(tally.experts) +
                  " experts serve a token in each of " + std::to_string(layout.rows) +
                  " layers; an even load would be one shade.",
              {.size = 11.5, .fill = kQuiet});
  svg.AddRect(kLeft, kTop, static_cast<double>(layout.experts) * layout.cell_width,
              layout.bottom - kTop, HexOf(Shade(0)));
  const bool hovers = layout.rows * layout.experts <= kMostHovers;
  for (size_t row = 0; row < layout.rows; ++row) {
    const auto counts = DenseCounts(tally, tally.counts[row]);
    const routing::Load load = routing::LoadOf(counts);
    const uint32_t layer = tally.counts[row].layer;
    if (hovers) {
      DrawCells(svg, layout, row, layer, counts, load);
    } else {
      DrawPaths(svg, layout, row, counts, load);
    }
    DrawLoad(svg, layout, row, layer, load);
  }
  DrawAxes(svg, layout, tally);
  svg.AddScale(kLeft, layout.height - 34, 220, "picks, in even shares", "0", "2", "4 and more");
  return svg.Take();
}

}  // namespace mk::client
