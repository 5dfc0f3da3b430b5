// The vocabulary of built models, whatever their architecture: a token per byte and eight special
// ids (tokenizer/byte_tokenizer.h).

#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/base/result.h"

namespace mk {

// "specials" of the config: the last eight ids or, from 163840 ids on, those of Kimi.
nlohmann::ordered_json ByteVocabSpecials(uint32_t vocab);

// From this row on the head is zero, so that a random model does not stop early.
uint32_t FirstSpecialRow(uint32_t vocab);

// kInvalidArgument when there is no room for 256 bytes and 8 special ids.
Status CheckByteVocab(uint32_t vocab);

}  // namespace mk
