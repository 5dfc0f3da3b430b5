// Tokenizers over a tiktoken rank file: the full Kimi vocabulary, a remap of it, a model's own.

#pragma once

#include <memory>
#include <string>

#include "engine/base/result.h"
#include "engine/tokenizer/rank_table.h"
#include "engine/tokenizer/splitter.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab_json.h"

namespace mk {

// Ranks of the published Kimi rank file.
inline constexpr size_t kKimiRanks = 163584;

// Name of an id of the full vocabulary from 163584 on: "<|open|>", "[BOS]",
// "<|reserved_token_163600|>".
std::string KimiSpecialName(int32_t full_id);

// The eight specials of the full vocabulary.
SpecialTokens KimiSpecials();

// Full vocabulary of 163840 ids; ids from ranks.size() to 163583 stand for nothing. Errors:
// kIncompatible when there are more ranks than that.
Result<std::shared_ptr<const Tokenizer>> MakeFullTokenizer(RankTable ranks,
                                                           const SplitLimits& limits = {});

// Remap or own vocabulary on the rank file it belongs to; `what` names the rank file. Errors:
// kIncompatible when the vocabulary uses ids that the rank file does not have.
Result<std::shared_ptr<const Tokenizer>> MakeVocabTokenizer(RankTable ranks, const VocabJson& vocab,
                                                            const std::string& what,
                                                            const SplitLimits& limits = {});

}  // namespace mk
