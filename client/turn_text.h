// A message that is typed over several lines.
//
// A line that ends with a backslash goes on in the next one. A line that begins with """ begins a
// text of several lines, which ends with a line that ends with """.

#pragma once

#include <string>

namespace mk::client {

class TurnText {
 public:
  // Takes a line. True: text() is whole; the next line begins a new one.
  bool Push(const std::string& line);
  const std::string& text() const { return text_; }
  // A text was begun and is not whole.
  bool open() const { return state_ != State::kWhole; }
  void Drop();

 private:
  enum class State { kWhole, kContinued, kBlock };

  bool PushToBlock(std::string_view line);

  State state_ = State::kWhole;
  std::string text_;
};

}  // namespace mk::client
