// Vocabulary JSON of a small DeepSeek-V4 model: which tokens of a tokenizer.json its ids stand for.
//
//   nano_to_ds  index = model id, value = id in the tokenizer.json, each once
//   vocab_size  rows of the model
//   specials    model ids behind the tokens: bos, eos, unk, and optionally pad and end_of_msg;
//               end_of_msg may be the same as eos
// Text outside these tokens becomes unk. Such models have no chat template.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {

struct Dsv4Remap {
  std::vector<int32_t> full_ids;  // nano_to_ds
  SpecialTokens specials;
  size_t vocab_size = 0;
};

// Parses and checks; `what` names the file. Errors: kCorrupt. Thread-safe.
Result<Dsv4Remap> ParseDsv4Remap(std::string_view text, const std::string& what);

}  // namespace mk
