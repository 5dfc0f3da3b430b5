// What a Forward refuses before it touches any sequence.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/model/model.h"

namespace mk {

// Rows of logits that an item wants.
size_t LogitRows(const ForwardItem& item);

// Tokens, logits and sequences of all items; `owner` is the model that the sequences must belong
// to. kInvalidArgument, kContextOverflow.
Status CheckForwardItems(std::span<const ForwardItem> items, const void* owner, size_t vocab);

}  // namespace mk
