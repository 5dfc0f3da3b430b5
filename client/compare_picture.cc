#include "client/compare_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "client/eval_text.h"
#include "client/svg.h"

namespace mk::client {
namespace {

constexpr double kWidth = 860;
constexpr double kLabels = 220;  // columns of the measures
constexpr double kPlot = 330;
constexpr double kRow = 34;
constexpr double kSquare = 300;  // the documents
constexpr std::string_view kQuiet = "#66717c";
constexpr std::string_view kInk = "#222222";
constexpr std::string_view kBetter = "#2a7f4f";
constexpr std::string_view kWorse = "#c0462b";
constexpr std::string_view kNeither = "#4a5560";
constexpr std::string_view kGrid = "#d9dfe5";

std::string Number(double value, int decimals) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string_view ColourOf(const std::string& verdict) {
  if (verdict == "better") return kBetter;
  return verdict == "worse" ? kWorse : kNeither;
}

// Measures of one unit, which share a scale.
struct Group {
  std::string title;
  double scale = 1;
  int decimals = 4;
  std::vector<std::pair<std::string, const protocol::PairedDifference*>> rows;
};

std::vector<Group> GroupsOf(const protocol::CompareDone& done) {
  std::vector<Group> groups;
  Group bits{"bits per byte, B - A (less is better)", 1, 4, {}};
  for (const auto& text : done.texts) bits.rows.emplace_back(text.name, &text.bits_per_byte);
  Group points{"right answers in points, B - A (more is better)", 100, 1, {}};
  for (const auto& task : done.tasks) points.rows.emplace_back(task.name, &task.accuracy);
  for (Group* group : {&bits, &points}) {
    if (!group->rows.empty()) groups.push_back(std::move(*group));
  }
  return groups;
}

// The largest distance from nothing that a group shows.
double ReachOf(const Group& group) {
  double reach = 0;
  for (const auto& [name, difference] : group.rows) {
    for (const double value :
         {difference->difference, difference->low.value_or(0), difference->high.value_or(0)}) {
      if (std::isfinite(value)) reach = std::max(reach, std::abs(value));
    }
  }
  return reach > 0 ? 1.15 * reach : 1;
}

void DrawMeasure(Svg& svg, const Group& group, size_t i, double y, double reach) {
  const auto& [name, difference] = group.rows[i];
  const auto x = [&](double value) {
    return kLabels + kPlot / 2 * (1 + std::clamp(value / reach, -1.0, 1.0));
  };
  const std::string_view colour = ColourOf(difference->verdict);
  svg.AddText(24, y + 4, name, {.size = 12.5, .fill = kInk});
  svg.AddText(kLabels - 12, y + 4,
              Number(group.scale * difference->a, group.decimals) + "  " +
                  Number(group.scale * difference->b, group.decimals),
              {.anchor = "end", .size = 11, .fill = kQuiet});
  const std::string estimate = SignedText(difference->difference, group.scale, group.decimals);
  std::string hover = name + ": " + estimate;
  if (difference->low && difference->high) {
    hover += " [" + SignedText(difference->low, group.scale, group.decimals) + ", " +
             SignedText(difference->high, group.scale, group.decimals) + "]";
  }
  svg.Begin(hover + "\nbetter in " + std::to_string(difference->better) + ", worse in " +
            std::to_string(difference->worse) + " of " + std::to_string(difference->units));
  if (difference->low && difference->high) {
    svg.AddLine(x(*difference->low), y, x(*difference->high), y, colour, 2.5);
    for (const double end : {*difference->low, *difference->high}) {
      svg.AddLine(x(end), y - 5, x(end), y + 5, colour, 1.5);
    }
  }
  svg.AddCircle(x(difference->difference), y, 4.5, colour);
  svg.End();
  svg.AddText(kLabels + kPlot + 16, y + 4, estimate, {.size = 11.5, .fill = colour, .bold = true});
  svg.AddText(kLabels + kPlot + 82, y + 4, difference->verdict, {.size = 11.5, .fill = colour});
}

double DrawGroup(Svg& svg, const Group& group, double y) {
  const double reach = ReachOf(group);
  const double bottom = y + 20 + kRow * static_cast<double>(group.rows.size());
  const double middle = kLabels + kPlot / 2;
  svg.AddText(24, y, group.title, {.size = 12, .fill = kQuiet});
  for (const double at : {-1.0, -0.5, 0.5, 1.0}) {
    const double x = middle + at * kPlot / 2;
    svg.AddLine(x, y + 12, x, bottom, kGrid);
    svg.AddText(x, bottom + 14, SignedText(at * reach, group.scale, group.decimals),
                {.anchor = "middle", .size = 10, .fill = kQuiet});
  }
  svg.AddLine(middle, y + 12, middle, bottom, kInk, 1.2);
  svg.AddText(middle, bottom + 14, "0", {.anchor = "middle", .size = 10, .fill = kQuiet});
  for (size_t i = 0; i < group.rows.size(); ++i) {
    DrawMeasure(svg, group, i, y + 20 + kRow * (static_cast<double>(i) + 0.5), reach);
  }
  return bottom + 44;
}

struct Point {
  const protocol::ComparedDocument* document;
  double a;
  double b;
};

std::vector<Point> PointsOf(const protocol::CompareDone& done) {
  std::vector<Point> points;
  for (const auto& text : done.texts) {
    for (const auto& document : text.documents) {
      const auto bytes = static_cast<double>(std::max<uint64_t>(document.bytes, 1));
      points.push_back({&document, document.bits_a / bytes, document.bits_b / bytes});
    }
  }
  std::erase_if(points, [](const Point& p) { return !std::isfinite(p.a) || !std::isfinite(p.b); });
  return points;
}

// A dot per document: below the diagonal B has fewer bits.
void DrawDocuments(Svg& svg, const std::vector<Point>& points, double y) {
  double low = points.front().a;
  double high = low;
  for (const Point& point : points) {
    low = std::min({low, point.a, point.b});
    high = std::max({high, point.a, point.b});
  }
  const double margin = std::max(0.05 * (high - low), 1e-3);
  low -= margin;
  high += margin;
  constexpr double kLeft = 76;
  const auto x = [&](double value) { return kLeft + kSquare * (value - low) / (high - low); };
  const auto up = [&](double value) { return y + kSquare * (high - value) / (high - low); };
  svg.AddRect(kLeft, y, kSquare, kSquare, "#f7f9fb");
  svg.AddLine(kLeft, y + kSquare, kLeft + kSquare, y, "#9aa5b0", 1.2);
  for (const double share : {0.0, 0.5, 1.0}) {
    const double value = low + share * (high - low);
    svg.AddText(x(value), y + kSquare + 16, Number(value, 2),
                {.anchor = "middle", .size = 10, .fill = kQuiet});
    svg.AddText(kLeft - 8, up(value) + 4, Number(value, 2),
                {.anchor = "end", .size = 10, .fill = kQuiet});
  }
  svg.AddText(kLeft + kSquare / 2, y + kSquare + 34, "A: bits per byte of a document",
              {.anchor = "middle", .size = 11, .fill = kQuiet});
  svg.AddText(28, y + kSquare / 2, "B",
              {.anchor = "middle", .size = 11, .fill = kQuiet, .turn = -90});
  for (const Point& point : points) {
    svg.Begin(point.document->id + "\nA " + Number(point.a, 4) + ", B " + Number(point.b, 4));
    svg.AddCircle(x(point.a), up(point.b), 4,
                  point.b < point.a   ? kBetter
                  : point.b > point.a ? kWorse
                                      : kNeither);
    svg.End();
  }
}

void DrawFidelity(Svg& svg, const protocol::CompareDone& done, double x, double y) {
  const auto line = [&](const std::string& label, const std::string& value) {
    svg.AddText(x, y, label, {.size = 12, .fill = kQuiet});
    svg.AddText(x + 190, y, value, {.size = 12, .fill = kInk, .bold = true});
    y += 22;
  };
  if (!done.fidelity) {
    svg.AddText(x, y, "next tokens are not compared:", {.size = 12, .fill = kQuiet});
    svg.AddText(x, y + 20, done.no_fidelity, {.size = 12, .fill = kQuiet});
    return;
  }
  const protocol::Fidelity& fidelity = *done.fidelity;
  line("positions", std::to_string(fidelity.positions));
  line("same likeliest token", Number(100 * fidelity.top1.mean, 2) + " %");
  line("five likeliest shared", Number(100 * fidelity.top5.mean, 2) + " %");
  line("KL, nats: mean", Number(fidelity.kl.mean, 6));
  line("median", Number(fidelity.kl_median, 6));
  line("95th percentile", Number(fidelity.kl_p95, 6));
  line("largest", Number(fidelity.kl_max, 6));
  if (fidelity.routers.empty()) return;
  y += 14;
  svg.AddText(x, y, "experts that both picked, by layer", {.size = 12, .fill = kQuiet});
  const double height = 90;
  const double step = std::min(28.0, 380.0 / static_cast<double>(fidelity.routers.size()));
  y += 12;
  for (size_t i = 0; i < fidelity.routers.size(); ++i) {
    const protocol::LayerOverlap& layer = fidelity.routers[i];
    const double tall = height * std::clamp(layer.overlap, 0.0, 1.0);
    const double left = x + step * static_cast<double>(i);
    svg.Begin("layer " + std::to_string(layer.layer) + ": " + Number(100 * layer.overlap, 2) +
              " %");
    svg.AddRect(left, y, step * 0.8, height, "#eef2f5");
    svg.AddRect(left, y + height - tall, step * 0.8, tall, HexOf(Shade(0.7)));
    svg.End();
    if (step < 14) continue;
    svg.AddText(left + step * 0.4, y + height + 14, std::to_string(layer.layer),
                {.anchor = "middle", .size = 10, .fill = kQuiet});
  }
}

}  // namespace

std::string DrawComparison(const protocol::CompareDone& done) {
  const std::vector<Group> groups = GroupsOf(done);
  const std::vector<Point> points = PointsOf(done);
  double height = 110;
  for (const Group& group : groups) height += 64 + kRow * static_cast<double>(group.rows.size());
  if (!points.empty()) height += kSquare + 70;
  const std::string a = NameOf(done.a);
  const std::string b = NameOf(done.b);
  Svg svg(kWidth, height, "Comparison of " + a + " and " + b);
  svg.AddText(24, 34, "A  " + a, {.size = 16, .bold = true});
  svg.AddText(24, 58, "B  " + b, {.size = 16, .bold = true});
  svg.AddText(24, 80,
              "95 % bootstrap intervals (" + done.interval + ", " + std::to_string(done.resamples) +
                  " resamples, seed " + std::to_string(done.seed) + ")",
              {.size = 11.5, .fill = kQuiet});
  double y = 112;
  for (const Group& group : groups) y = DrawGroup(svg, group, y);
  if (!points.empty()) {
    DrawDocuments(svg, points, y);
    DrawFidelity(svg, done, 440, y + 14);
  }
  return svg.Take();
}

}  // namespace mk::client
