// The DeepSeek-V4 chat markup: rendering of conversations, and reading of generated turns.
//
//   prompt      <begin> effort message...; the text of a thinking effort is in the chat assets
//   system      its text, no mark
//   user        <User> text; neighbouring user messages are one, with a blank line between
//   head        <Assistant> <think> or, where the answer begins at once, <Assistant> </think>;
//               stands behind a user message that is last or before an assistant's
//   assistant   text <end>; with thinking and behind the last user message:
//               reasoning </think> text <end>
// With thinking the head behind the last user message is the one with <think>. The reasoning of
// earlier turns is left out. Marks are ids; all text between two of them is encoded as one.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/tokenizer/dsv4_chat_assets.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

// Model ids of the marks; -1 where the vocabulary has none.
struct Dsv4Marks {
  int32_t begin = -1;
  int32_t end = -1;
  int32_t user = -1;
  int32_t assistant = -1;
  int32_t think = -1;
  int32_t end_think = -1;

  // Whether conversations can be written, at least without thinking.
  bool CanChat() const { return user >= 0 && assistant >= 0 && end_think >= 0; }
};

// Errors: see Tokenizer::RenderChat; kUnsupported also when the marks do not suffice, or another
// dialect is asked for.
Result<EncodedText> RenderDsv4Chat(const Tokenizer& tokenizer, const Dsv4Marks& marks,
                                   const Dsv4ChatAssets& assets,
                                   std::span<const ChatMessage> messages,
                                   const ChatOptions& options);

std::unique_ptr<ChannelParser> NewDsv4ChannelParser(const Tokenizer& tokenizer,
                                                    const Dsv4Marks& marks, bool thinking);

}  // namespace mk
