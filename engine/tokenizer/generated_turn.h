// Generated ids of a chat turn against the text that is told of it.

#pragma once

#include "engine/tokenizer/tokenizer.h"

namespace mk {

// Whether message.ids, which follow the head of the assistant's turn, are exactly this message: the
// texts of its channels and, beside them, only the tags of the template. `parser` is a new one for
// the turn and has read the ids afterwards.
bool IsGeneratedAs(const ChatMessage& message, const Tokenizer& tokenizer, ChannelParser& parser);

}  // namespace mk
