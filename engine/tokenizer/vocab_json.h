// Vocabulary JSON beside a model: which tokens of a rank file the model's ids stand for.
//
//   nano_to_kimi  index = model id, value = id in the rank file or, in cut vocabularies, a special
//                 id of the full Kimi vocabulary (163584..163839)
//   specials      model ids of bos, eos, open, close, sep, end_of_msg, unk, and optionally pad
//   vocab_size    rows of the model; default: length of nano_to_kimi + 8
//   format        "microkimi-vocab-remap-1", "microkimi-vocab-own-1", or absent (old remaps)
//   base, base_sha256  rank file in the same folder and its digest; required for "own"
//   chat_dialect  "k3", "nano-sft", or "none" for models that were not taught to chat; default:
//                 nano-sft for remaps, k3 for own vocabularies

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

// First special id and size of the full Kimi vocabulary.
inline constexpr int32_t kKimiFirstSpecial = 163584;
inline constexpr int32_t kKimiVocab = 163840;

enum class VocabFormat {
  kLegacyRemap,  // no "format": text outside the kept tokens becomes unk
  kRemap,        // remap-1: a dropped token is spelled with kept ones where all bytes are kept
  kOwn,          // own-1: the rank file is the model's own
};

struct VocabJson {
  VocabFormat format = VocabFormat::kLegacyRemap;
  std::vector<int32_t> full_ids;  // nano_to_kimi
  SpecialTokens specials;
  size_t vocab_size = 0;
  std::string base;         // file name in the same folder; may be empty
  std::string base_sha256;  // 64 lower-case hex digits; may be empty
  std::optional<ChatDialect> dialect = ChatDialect::kNanoSft;
};

// Parses and checks; `what` names the file. Checked: types, ranges, distinct entries, specials
// distinct and inside the vocabulary, a special id not also an ordinary token. Errors: kCorrupt,
// kUnsupported (a format of the future). Thread-safe.
Result<VocabJson> ParseVocabJson(std::string_view text, const std::string& what);

}  // namespace mk
