// The Kimi chat markup: rendering of conversations, and reading of generated turns.
//
//   open(tag, k=v...)  [open] tag ' k' '="' v '"' ... [sep]
//   close(tag)         [close] tag [sep]
//   user, system       open(message, role[, name]) content close(message) [end_of_msg]
//   assistant          open(message, role) open(think) reasoning close(think)
//                      open(response) content close(response) close(message) [end_of_msg]
//   generation prompt  open(message, role=assistant) open(think)
// Without thinking, the think pair is left out and the prompt ends in open(response). In the
// nano-sft dialect an assistant's turn is open(message, role) open(think) content [end_of_msg].
// A turn whose generated ids are known is its head, these ids, and what closes them.
// Brackets are ids; every piece of text between them is encoded on its own.

#pragma once

#include <memory>
#include <span>

#include "engine/tokenizer/tokenizer.h"

namespace mk {

// For any tokenizer with the specials open, close, sep and end_of_msg. Errors: see
// Tokenizer::RenderChat.
Result<EncodedText> RenderKimiChat(const Tokenizer& tokenizer,
                                   std::span<const ChatMessage> messages,
                                   const ChatOptions& options);

// `tokenizer` must outlive the parser.
std::unique_ptr<ChannelParser> NewKimiChannelParser(const Tokenizer& tokenizer,
                                                    const ChatOptions& options);

}  // namespace mk
