// Dsv4Vocabulary: text to the ids of a tokenizer.json and back.
//
// Immutable after making, thread-safe to read.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/pair_merges.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace mk {

class Dsv4Vocabulary {
 public:
  // How added tokens in the text are taken.
  enum class Marks {
    kAsText,  // as any other text: what users, documents and models write
    kAsIds,   // as the ids that they are
  };

  explicit Dsv4Vocabulary(TokenizerJson json);
  Dsv4Vocabulary(Dsv4Vocabulary&&) = default;
  Dsv4Vocabulary& operator=(Dsv4Vocabulary&&) = default;

  // One more than the largest id.
  size_t size() const { return tokens_.size(); }
  // Bytes of a token, added ones too; empty for ids in [0, size) that stand for nothing.
  std::string_view Bytes(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  const AddedTokens& added() const { return added_; }

  // Errors: kInvalidArgument when the text is not UTF-8, naming the offset.
  Result<std::vector<int32_t>> Encode(std::string_view utf8, Marks marks = Marks::kAsText) const;

 private:
  Status Append(std::string_view utf8, std::vector<int32_t>& ids) const;

  std::vector<std::string> tokens_;
  PairMerges merges_;
  AddedTokens added_;
  // With ignore_merges: tokens by their bytes, without added ones; views into tokens_.
  std::unordered_map<std::string_view, int32_t> whole_pieces_;
};

}  // namespace mk
