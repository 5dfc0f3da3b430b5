#include "client/table.h"

#include <algorithm>

namespace mk::client {
namespace {

constexpr size_t kGap = 2;

constexpr std::string_view Sequence(Color color) {
  switch (color) {
    case Color::kNone:
      break;
    case Color::kBold:
      return "\x1b[1m";
    case Color::kDim:
      return "\x1b[2m";
    case Color::kRed:
      return "\x1b[31m";
    case Color::kGreen:
      return "\x1b[32m";
    case Color::kYellow:
      return "\x1b[33m";
    case Color::kCyan:
      return "\x1b[36m";
  }
  return "";
}

}  // namespace

std::string Painter::operator()(Color color, std::string_view text) const {
  std::string painted(text);
  if (!color_ || color == Color::kNone || text.empty()) return painted;
  return std::string(Sequence(color)) + painted + "\x1b[0m";
}

size_t TableRow::Room() const {
  return columns_ - std::min(columns_, used_);
}

TableRow& TableRow::Cell(std::string fitted, size_t width, Color color) {
  if (columns_ != 0) {
    width = std::min(width, Room());
    fitted = Fitted(fitted, width);
  }
  line_ += paint_(color, fitted);
  const size_t gap = columns_ == 0 ? kGap : std::min(kGap, Room() - width);
  line_.append(gap, ' ');
  used_ += width + gap;
  return *this;
}

TableRow& TableRow::Left(std::string_view text, size_t width, Color color) {
  return Cell(Fitted(Printable(text), width), width, color);
}

TableRow& TableRow::Right(std::string_view text, size_t width, Color color) {
  std::string cell = Printable(text);
  const size_t wide = DisplayWidth(cell);
  if (wide < width) cell.insert(0, width - wide, ' ');
  return Cell(Fitted(cell, width), width, color);
}

TableRow& TableRow::Rest(std::string_view text, Cut cut, Color color) {
  const std::string printable = Printable(text);
  const size_t wide = DisplayWidth(printable);
  const size_t width = columns_ == 0 ? wide : std::min(wide, Room());
  line_ += paint_(color, Fitted(printable, width, cut));
  used_ += width;
  return *this;
}

std::string TableRow::Take() {
  line_.erase(line_.find_last_not_of(' ') + 1);
  return std::move(line_);
}

}  // namespace mk::client
