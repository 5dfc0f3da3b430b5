// tokenizer.json: the byte-level BPE vocabulary of a DeepSeek-V4 model.
//
// Of the file format of the `tokenizers` library these parts are read:
//   model.type           "BPE"
//   model.vocab          token, spelled in the byte alphabet (byte_alphabet.h), to id
//   model.merges         "A B" or ["A", "B"], the first has rank 0
//   model.ignore_merges  true: a piece that is a token is that token, whatever the merges make
//   added_tokens         id, content, special, normalized
// What would change the ids and is not built here is refused by name: a normalizer, dropout, unk
// tokens, byte fallback, affixes, added tokens with single_word, lstrip or rstrip, and any other
// pre_tokenizer than the three cuts of dsv4_splitter.h before bytes. A file without the key
// "pre_tokenizer" is taken to have that one. post_processor and decoder are not looked at.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/pair_merges.h"

namespace mk {

inline constexpr uint64_t kMaxTokenizerJsonBytes = uint64_t{64} << 20;
inline constexpr size_t kMaxTokenizerIds = size_t{1} << 20;

struct TokenizerJson {
  std::vector<std::string> tokens;  // bytes by id, added tokens too; empty: no token has the id
  std::array<int32_t, 256> byte_ids{};
  std::vector<PairMerge> merges;  // in order of rank
  std::vector<AddedToken> added;
  bool ignore_merges = false;
};

// Parses and checks; `what` names the file. Checked: types; ids below 2^20, each once; tokens of 1
// to 4096 bytes; all 256 single bytes present; the parts and the result of each merge are tokens
// and no pair stands twice; an added token and a token of the same content have the same id; no
// added token is a byte or the result of a merge, so that text never becomes one.
// Errors: kCorrupt, kUnsupported; the message names the entry. Thread-safe.
Result<TokenizerJson> ParseTokenizerJson(std::string_view text, const std::string& what);

}  // namespace mk
