#include "client/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "client/printable.h"

namespace mk::client {
namespace {

// Light to deep; even steps look even.
constexpr std::array<Colour, 6> kShades = {{{247, 249, 251},
                                            {214, 230, 240},
                                            {166, 204, 224},
                                            {104, 168, 203},
                                            {50, 124, 175},
                                            {20, 76, 122}}};

constexpr std::string_view kSans = "'Inter','Helvetica Neue',Arial,'DejaVu Sans',sans-serif";
constexpr std::string_view kMono = "'JetBrains Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace";

std::string Attribute(std::string_view name, std::string_view value) {
  return " " + std::string(name) + "=\"" + std::string(value) + "\"";
}
std::string Attribute(std::string_view name, double value) {
  return Attribute(name, Coordinate(value));
}

}  // namespace

std::string XmlText(std::string_view text) {
  std::string safe;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string Coordinate(double value) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string number = text.data();
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return number == "-0" ? "0" : number;
}

std::string HexOf(const Colour& colour) {
  std::array<char, 16> text;
  const auto byte = [](double value) {
    return static_cast<int>(std::lround(std::clamp(value, 0.0, 255.0)));
  };
  std::snprintf(text.data(), text.size(), "#%02x%02x%02x", byte(colour.red), byte(colour.green),
                byte(colour.blue));
  return text.data();
}

Colour Shade(double value) {
  const double at = std::clamp(value, 0.0, 1.0) * (kShades.size() - 1);
  const auto i = std::min(static_cast<size_t>(at), kShades.size() - 2);
  const double t = at - static_cast<double>(i);
  const auto mix = [&](double a, double b) { return a + t * (b - a); };
  const Colour& a = kShades[i];
  const Colour& b = kShades[i + 1];
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

std::string_view InkOn(double value) {
  return value > 0.62 ? "#ffffff" : "#1b2733";
}

Svg::Svg(double width, double height, std::string_view title) {
  out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + Attribute("width", width) +
         Attribute("height", height) +
         Attribute("viewBox", "0 0 " + Coordinate(width) + " " + Coordinate(height)) +
         Attribute("role", "img") + ">\n<title>" + XmlText(title) + "</title>\n<style>text{" +
         "font-family:" + std::string(kSans) + "}.m{font-family:" + std::string(kMono) +
         ";white-space:pre}</style>\n";
  AddRect(0, 0, width, height, "#ffffff");
}

void Svg::AddRect(double x, double y, double width, double height, std::string_view fill,
                  std::string_view more) {
  out_ += "<rect" + Attribute("x", x) + Attribute("y", y) + Attribute("width", width) +
          Attribute("height", height) + Attribute("fill", fill) + std::string(more) + "/>\n";
}

void Svg::AddText(double x, double y, std::string_view text, const Text& form) {
  out_ += "<text" + Attribute("x", x) + Attribute("y", y) + Attribute("font-size", form.size) +
          Attribute("fill", form.fill);
  if (form.anchor != "start") out_ += Attribute("text-anchor", form.anchor);
  if (form.mono) out_ += " class=\"m\"";
  if (form.bold) out_ += " font-weight=\"600\"";
  if (form.turn != 0) {
    out_ += Attribute("transform", "rotate(" + Coordinate(form.turn) + " " + Coordinate(x) + " " +
                                       Coordinate(y) + ")");
  }
  out_ += ">" + XmlText(text) + "</text>\n";
}

void Svg::AddLine(double x1, double y1, double x2, double y2, std::string_view stroke,
                  double width) {
  out_ += "<line" + Attribute("x1", x1) + Attribute("y1", y1) + Attribute("x2", x2) +
          Attribute("y2", y2) + Attribute("stroke", stroke) + Attribute("stroke-width", width) +
          "/>\n";
}

void Svg::AddCircle(double x, double y, double radius, std::string_view fill) {
  out_ += "<circle" + Attribute("cx", x) + Attribute("cy", y) + Attribute("r", radius) +
          Attribute("fill", fill) + "/>\n";
}

void Svg::AddPath(std::string_view data, std::string_view fill) {
  out_ += "<path" + Attribute("d", data) + Attribute("fill", fill) +
          " shape-rendering=\"crispEdges\"/>\n";
}

void Svg::Begin(std::string_view hover) {
  // Line breaks are wanted here: a line of a hover is printable, the whole is not.
  out_ += "<g><title>";
  for (size_t at = 0; at <= hover.size();) {
    const size_t end = std::min(hover.find('\n', at), hover.size());
    out_ += (at > 0 ? "\n" : "") + XmlText(hover.substr(at, end - at));
    at = end + 1;
  }
  out_ += "</title>\n";
}

void Svg::End() {
  out_ += "</g>\n";
}

void Svg::AddScale(double x, double y, double width, std::string_view title, std::string_view low,
                   std::string_view middle, std::string_view high) {
  constexpr int kSteps = 48;
  AddText(x, y - 6, title, {.size = 11, .fill = "#4a5560"});
  const double step = width / kSteps;
  for (int i = 0; i < kSteps; ++i) {
    const std::string path = "M" + Coordinate(x + i * step) + " " + Coordinate(y) + "h" +
                             Coordinate(step + 0.5) + "v10h-" + Coordinate(step + 0.5) + "z";
    AddPath(path, HexOf(Shade((i + 0.5) / kSteps)));
  }
  AddText(x, y + 22, low, {.size = 10, .fill = "#4a5560"});
  AddText(x + width / 2, y + 22, middle, {.anchor = "middle", .size = 10, .fill = "#4a5560"});
  AddText(x + width, y + 22, high, {.anchor = "end", .size = 10, .fill = "#4a5560"});
}

std::string Svg::Take() {
  return std::move(out_) + "</svg>\n";
}

}  // namespace mk::client
