#include "client/answer_text.h"

#include <cstdio>

namespace mk::client {

void AnswerText::Take(const protocol::TokenChunk& token) {
  if (token.channel == "hidden" || token.text.empty()) return;
  if (token.channel == "reasoning") {
    if (!show_reasoning_) return;
    const std::string text = (reasoning_shown_ ? "" : "\x1b[2m") + token.text;
    std::fputs(text.c_str(), stderr);
    reasoning_shown_ = true;
    return;
  }
  EndReasoning();
  output_.Write(token.text);
}

void AnswerText::EndReasoning() {
  if (reasoning_shown_) std::fputs("\x1b[0m\n", stderr);
  reasoning_shown_ = false;
}

}  // namespace mk::client
