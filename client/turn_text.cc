#include "client/turn_text.h"

#include <string_view>

namespace mk::client {
namespace {

constexpr std::string_view kMark = "\"\"\"";

}  // namespace

bool TurnText::Push(const std::string& line) {
  if (state_ == State::kWhole) text_.clear();
  if (state_ == State::kBlock) return PushToBlock(line);
  if (state_ == State::kWhole && line.starts_with(kMark)) {
    state_ = State::kBlock;
    const std::string_view rest = std::string_view(line).substr(kMark.size());
    return !rest.empty() && PushToBlock(rest);
  }
  const bool goes_on = line.ends_with('\\');
  text_.append(line, 0, line.size() - (goes_on ? 1 : 0));
  if (goes_on) text_.push_back('\n');
  state_ = goes_on ? State::kContinued : State::kWhole;
  return !goes_on;
}

bool TurnText::PushToBlock(std::string_view line) {
  const bool ends = line.ends_with(kMark);
  if (ends) line.remove_suffix(kMark.size());
  text_ += line;
  if (!ends) {
    text_.push_back('\n');
  } else {
    // The mark on a line of its own ends the line before it.
    if (line.empty() && text_.ends_with('\n')) text_.pop_back();
    state_ = State::kWhole;
  }
  return ends;
}

void TurnText::Drop() {
  state_ = State::kWhole;
  text_.clear();
}

}  // namespace mk::client
