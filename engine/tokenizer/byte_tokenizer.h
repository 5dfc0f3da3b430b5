// ByteTokenizer: a token per byte, for models without a vocabulary (config "tokenizer": "bytes").
//
// Ids 0..255 are the bytes. The specials bos, eos, open, close, sep, end_of_msg, unk, pad are the
// last eight ids in that order or, from 163840 ids on, those of the full Kimi vocabulary. Every
// other id has the text "<|id|>", so that random models show what they picked.

#pragma once

#include <cstddef>
#include <memory>

#include "engine/base/result.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

// Errors: kIncompatible when `vocab_size` is below 264 or beyond 2^24.
Result<std::shared_ptr<const Tokenizer>> MakeByteTokenizer(size_t vocab_size);

}  // namespace mk
