#include "client/lens_picture.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "client/look_text.h"
#include "client/printable.h"
#include "client/svg.h"

namespace mk::client {
namespace {

constexpr double kLeft = 96;
constexpr double kRight = 28;
constexpr std::string_view kQuiet = "#66717c";
constexpr std::string_view kMark = "#e0732b";

std::string Decimal(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

// A blank at its start is part of a token: it shows as a dot.
std::string Label(const std::string& text, int32_t id) {
  if (text.empty()) return "#" + std::to_string(id);
  std::string label = Printable(text);
  for (size_t i = 0; i < label.size() && label[i] == ' '; i += 2) label.replace(i, 1, "·");
  return label;
}

// At most so many columns of text.
std::string Short(const std::string& label, size_t width) {
  if (DisplayWidth(label) <= width) return label;
  std::string cut = Fitted(label, width);
  while (!cut.empty() && cut.back() == ' ') cut.pop_back();
  return cut;
}

// Sizes that suit the number of columns and rows.
struct Layout {
  explicit Layout(const LensPicture& picture)
      : columns(picture.columns.size()), rows(picture.columns.front().layers.size()) {
    cell_width = columns <= 10 ? 92 : columns <= 20 ? 78 : columns <= 40 ? 62 : 15;
    cell_height = rows <= 12 ? 30 : rows <= 32 ? 24 : rows <= 64 ? 18 : 14;
    font = std::min(11.5, cell_height * 0.58);
    texts = cell_width >= 40;
    label_height = texts ? 26 : 84;
    top = 92 + label_height;
    bottom = top + static_cast<double>(rows) * cell_height;
    width = std::max(640.0, kLeft + static_cast<double>(columns) * cell_width + kRight);
    height = bottom + label_height + 70;
  }
  double x(size_t column) const { return kLeft + static_cast<double>(column) * cell_width; }
  // Layer rows go upwards.
  double y(size_t row) const { return bottom - static_cast<double>(row + 1) * cell_height; }
  // That fit beside a mark into a cell, at a size of type.
  size_t Characters(double size) const {
    return static_cast<size_t>((cell_width - 13) / (size * 0.61));
  }

  size_t columns;
  size_t rows;
  double cell_width;
  double cell_height;
  double font;
  bool texts;  // cells are wide enough for them
  double label_height;
  double top;
  double bottom;
  double width;
  double height;
};

double ValueOf(const LensPicture& picture, const protocol::LensLayer& layer) {
  if (picture.colour == LensPicture::Colour::kEntropy) {
    return 1 - layer.entropy / std::max(1e-9, picture.largest_entropy);
  }
  return layer.probabilities.empty() ? 0 : layer.probabilities.front();
}

std::string HoverOf(const protocol::LensChunk& column, const protocol::LensLayer& layer) {
  std::string text = "layer " + std::to_string(layer.layer) + " " + layer.kind + ", after " +
                     QuotedOr(column.text, column.id);
  for (size_t i = 0; i < std::min(layer.ids.size(), layer.probabilities.size()); ++i) {
    const std::string token = i < layer.texts.size() ? layer.texts[i] : std::string();
    text += "\n" + QuotedOr(token, layer.ids[i]) + "  " + PercentText(layer.probabilities[i]);
  }
  text += "\nentropy " + Decimal(layer.entropy) + " nats";
  if (column.next && layer.rank && layer.probability) {
    text += "\nnext " + QuotedOr(column.next_text, *column.next) + ": rank " +
            std::to_string(*layer.rank + 1) + ", " + PercentText(*layer.probability);
  }
  return text;
}

void DrawCell(Svg& svg, const LensPicture& picture, const Layout& layout, size_t c, size_t r) {
  const protocol::LensChunk& column = picture.columns[c];
  const protocol::LensLayer& layer = column.layers[r];
  const double value = ValueOf(picture, layer);
  const double x = layout.x(c);
  const double y = layout.y(r);
  svg.Begin(HoverOf(column, layer));
  svg.AddRect(x, y, layout.cell_width, layout.cell_height, HexOf(Shade(value)),
              " stroke=\"#ffffff\" stroke-width=\"1\"");
  const bool right = column.next && !layer.ids.empty() && layer.ids.front() == *column.next;
  if (layout.texts && !layer.ids.empty()) {
    const std::string text = layer.texts.empty() ? std::string() : layer.texts.front();
    svg.AddText(x + layout.cell_width / 2, y + layout.cell_height / 2 + layout.font * 0.36,
                Short(Label(text, layer.ids.front()), layout.Characters(layout.font)),
                {.anchor = "middle", .size = layout.font, .fill = InkOn(value), .mono = true});
  }
  if (right) {
    const double inset = layout.texts ? 6 : layout.cell_width / 2;
    svg.AddCircle(x + layout.cell_width - inset, layout.texts ? y + 6 : y + layout.cell_height / 2,
                  layout.texts ? 2.6 : 2, kMark);
  }
  svg.End();
}

// The token that was read below a column, and the one that came next above it.
void DrawLabels(Svg& svg, const LensPicture& picture, const Layout& layout) {
  for (size_t c = 0; c < layout.columns; ++c) {
    const protocol::LensChunk& column = picture.columns[c];
    const double x = layout.x(c) + layout.cell_width / 2;
    const std::string read = Label(column.text, column.id);
    const std::string next = column.next ? Label(column.next_text, *column.next) : "";
    const std::string_view ink = column.index ? "#1f4e79" : "#222222";
    if (layout.texts) {
      const size_t most = layout.Characters(11);
      svg.AddText(x, layout.bottom + 18, Short(read, most),
                  {.anchor = "middle", .size = 11, .fill = ink, .mono = true, .bold = true});
      svg.AddText(x, layout.top - 9, Short(next, most),
                  {.anchor = "middle", .size = 11, .fill = kMark, .mono = true});
    } else {
      svg.AddText(x + 4, layout.bottom + 8, Short(read, 11),
                  {.anchor = "end", .size = 10, .fill = ink, .mono = true, .turn = -90});
      svg.AddText(x + 4, layout.top - 6, Short(next, 11),
                  {.size = 10, .fill = kMark, .mono = true, .turn = -90});
    }
  }
  svg.AddText(kLeft - 10, layout.bottom + 18, "read",
              {.anchor = "end", .size = 11, .fill = kQuiet});
  svg.AddText(kLeft - 10, layout.top - 9, "came next",
              {.anchor = "end", .size = 11, .fill = kQuiet});
}

void DrawLayers(Svg& svg, const LensPicture& picture, const Layout& layout) {
  const auto& layers = picture.columns.front().layers;
  for (size_t r = 0; r < layout.rows; ++r) {
    const double y = layout.y(r) + layout.cell_height / 2 + 4;
    const double size = std::min(11.0, layout.cell_height * 0.75);
    svg.AddText(kLeft - 46, y, std::to_string(layers[r].layer),
                {.anchor = "end", .size = size, .fill = "#222222"});
    svg.AddText(kLeft - 10, y, layers[r].kind, {.anchor = "end", .size = size, .fill = kQuiet});
  }
  svg.AddText(20, (layout.top + layout.bottom) / 2, "layer",
              {.anchor = "middle", .size = 11, .fill = kQuiet, .turn = -90});
}

// Where the answer begins.
void DrawSeam(Svg& svg, const LensPicture& picture, const Layout& layout) {
  for (size_t c = 1; c < layout.columns; ++c) {
    if (!picture.columns[c].index || picture.columns[c - 1].index) continue;
    svg.AddLine(layout.x(c), layout.top - 4, layout.x(c), layout.bottom + 24, "#1f4e79", 1.5);
    svg.AddText(layout.x(c) + 5, layout.bottom + layout.label_height + 12, "generated",
                {.size = 11, .fill = "#1f4e79"});
    svg.AddText(layout.x(c) - 5, layout.bottom + layout.label_height + 12, "prompt",
                {.anchor = "end", .size = 11, .fill = kQuiet});
  }
}

}  // namespace

std::string Draw(const LensPicture& picture) {
  const Layout layout(picture);
  Svg svg(layout.width, layout.height, "Logit lens of " + picture.model);
  svg.AddText(24, 32, "Logit lens", {.size = 18, .bold = true});
  std::string about = picture.model + "  ·  " + picture.settings;
  if (picture.left_out > 0) {
    about += "  ·  the first " + std::to_string(picture.left_out) + " tokens are left out";
  }
  svg.AddText(24, 52, about, {.size = 11.5, .fill = kQuiet});
  svg.AddText(24, 70, "Each cell: the likeliest next token if the model ended after that layer.",
              {.size = 11.5, .fill = kQuiet});
  for (size_t c = 0; c < layout.columns; ++c) {
    for (size_t r = 0; r < layout.rows; ++r) DrawCell(svg, picture, layout, c, r);
  }
  DrawLayers(svg, picture, layout);
  DrawLabels(svg, picture, layout);
  DrawSeam(svg, picture, layout);
  const double y = layout.height - 34;
  if (picture.colour == LensPicture::Colour::kEntropy) {
    svg.AddScale(kLeft, y, 220, "entropy in nats", Decimal(picture.largest_entropy), "",
                 "0 (certain)");
  } else {
    svg.AddScale(kLeft, y, 220, "probability of the likeliest token", "0", "0.5", "1");
  }
  svg.AddCircle(kLeft + 252, y + 5, 3, kMark);
  svg.AddText(kLeft + 262, y + 9, "it is the token that came next", {.size = 11, .fill = kQuiet});
  return svg.Take();
}

}  // namespace mk::client
