// Rows of columns for a terminal, and what a line may hold there.

#pragma once

#include <string>
#include <string_view>

#include "client/printable.h"

namespace mk::client {

enum class Color { kNone, kBold, kDim, kRed, kGreen, kYellow, kCyan };

// Colours a text, if colours are wanted.
class Painter {
 public:
  explicit Painter(bool color) : color_(color) {}
  std::string operator()(Color color, std::string_view text) const;

 private:
  bool color_;
};

// One row, put together from left to right. Text is made printable.
class TableRow {
 public:
  // `columns`: width of the row; 0: no limit.
  TableRow(const Painter& paint, size_t columns) : paint_(paint), columns_(columns) {}

  // A cell of its width, with two spaces behind it; what does not fit any more is left out.
  TableRow& Left(std::string_view text, size_t width, Color color = Color::kNone);
  TableRow& Right(std::string_view text, size_t width, Color color = Color::kNone);
  // What is left of the row.
  TableRow& Rest(std::string_view text, Cut cut = Cut::kEnd, Color color = Color::kNone);

  // Without spaces at its end.
  std::string Take();

 private:
  TableRow& Cell(std::string fitted, size_t width, Color color);
  size_t Room() const;

  const Painter& paint_;
  const size_t columns_;
  size_t used_ = 0;  // columns
  std::string line_;
};

}  // namespace mk::client
