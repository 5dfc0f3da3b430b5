// The text of an answer as its tokens come: what is thought on stderr, dim; the answer on the
// output.

#pragma once

#include "client/output.h"
#include "protocol/messages.h"

namespace mk::client {

class AnswerText {
 public:
  // Thinking is for people at a terminal; the answer alone is the output.
  AnswerText(Output& output, bool show_reasoning)
      : output_(output), show_reasoning_(show_reasoning) {}

  void Take(const protocol::TokenChunk& token);
  // Gives stderr back its usual look. Before anything else is written there.
  void EndReasoning();

 private:
  Output& output_;
  const bool show_reasoning_;
  bool reasoning_shown_ = false;  // stderr stands inside a reasoning text
};

}  // namespace mk::client
