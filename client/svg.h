// Pictures as SVG text: the few shapes that they need, with everything escaped.

#pragma once

#include <string>
#include <string_view>

namespace mk::client {

// Text for XML: printable, and without what markup is made of.
std::string XmlText(std::string_view text);

struct Colour {
  double red = 0;  // 0..255
  double green = 0;
  double blue = 0;
};
// "#1d5d8c"
std::string HexOf(const Colour& colour);
// From nearly white (0) to deep blue (1). Values beyond are cut.
Colour Shade(double value);
// What can be read on a shade: dark on light ones, white on deep ones.
std::string_view InkOn(double value);

class Svg {
 public:
  struct Text {
    std::string_view anchor = "start";  // "middle", "end"
    double size = 11;                   // pixels
    std::string_view fill = "#222222";
    bool mono = false;  // for tokens
    bool bold = false;
    double turn = 0;  // degrees, about its own point
  };

  Svg(double width, double height, std::string_view title);

  void AddRect(double x, double y, double width, double height, std::string_view fill,
               std::string_view more = {});
  void AddText(double x, double y, std::string_view text, const Text& form);
  void AddLine(double x1, double y1, double x2, double y2, std::string_view stroke,
               double width = 1);
  void AddCircle(double x, double y, double radius, std::string_view fill);
  // `data`: of a path, made by the caller.
  void AddPath(std::string_view data, std::string_view fill);
  // What follows until End() shows `hover` when the mouse rests on it.
  void Begin(std::string_view hover);
  void End();
  // Shades from left to right, with labels below.
  void AddScale(double x, double y, double width, std::string_view title, std::string_view low,
                std::string_view middle, std::string_view high);

  std::string Take();

 private:
  std::string out_;
};

// A coordinate, with at most two decimals.
std::string Coordinate(double value);

}  // namespace mk::client
