// AddedTokens: finding the added tokens of a tokenizer.json in text.
//
// An added token is found as its exact bytes: the leftmost match first, of those that start at one
// place the longest. Tokens that are not "normalized" are searched for in the whole text first, the
// others then in what is left between; without a normalizer that is all the difference there is.
// Immutable after making, thread-safe to read.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mk {

struct AddedToken {
  int32_t id = 0;
  std::string content;  // UTF-8, not empty
  bool special = false;
  bool normalized = false;
};

class AddedTokens {
 public:
  // No content twice.
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(AddedTokens&&) = default;  // moving a vector does not move its elements
  AddedTokens& operator=(AddedTokens&&) = default;

  // Calls `text_between` and `token` in the order of the text; `text_between` never with nothing.
  void Split(std::string_view text, const std::function<void(std::string_view)>& text_between,
             const std::function<void(const AddedToken&)>& token) const;
  // The token of that content; null when there is none.
  const AddedToken* Find(std::string_view content) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // One of the two searches.
  struct Table {
    std::unordered_map<std::string_view, const AddedToken*> by_content;
    std::array<std::vector<size_t>, 256> lengths;  // of the tokens that begin so, longest first
  };

  static void Add(const AddedToken& token, Table& table);
  // The longest token that starts `text`; null when none does.
  static const AddedToken* Match(const Table& table, std::string_view text);
  static void SplitWith(const Table& table, std::string_view text,
                        const std::function<void(std::string_view)>& text_between,
                        const std::function<void(const AddedToken&)>& token);

  std::vector<AddedToken> tokens_;
  Table plain_;
  Table normalized_;
};

}  // namespace mk
