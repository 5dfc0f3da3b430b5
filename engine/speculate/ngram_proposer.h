// NgramProposer: guesses that a text goes on as it did after the same few tokens before.
//
// For s = 8 down to 2: if the last s tokens occurred before, the guess is what followed their most
// recent earlier occurrence (which may overlap them). Longer suffixes come first.
//
// Every length has a table from the n-grams seen to the place after their last occurrence. A slot
// counts only if the tokens there are the same, so hashes that collide cost a step of probing and
// nothing else. Feeding a token and proposing take constant time, however long the text is.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculate/token_history.h"

namespace mk {

// One thread at a time.
class NgramProposer {
 public:
  static constexpr size_t kShortest = 2;
  static constexpr size_t kLongest = 8;

  // The next token of the text; at most kMaxHistory of them. Errors of allocation as
  // std::bad_alloc.
  void Feed(int32_t token);
  // At most `most` tokens, all of them of the text so far.
  Draft Propose(size_t most) const;
  void Clear();

  size_t size() const { return text_.size(); }
  size_t bytes() const;  // held now
  // The most that it holds after so many tokens.
  static size_t MaxBytes(size_t tokens);

 private:
  static constexpr size_t kLengths = kLongest - kShortest + 1;

  // Of one length: open addressing, a power of two slots of which at most three quarters are used.
  struct Slot {
    uint32_t hash = 0;
    uint32_t next = 0;  // index of the token after the n-gram; 0: free
  };
  struct Table {
    std::vector<Slot> slots;
    size_t used = 0;
  };

  // Makes the n-gram that ends with the text the last of its kind; gives where it was before, or 0.
  uint32_t Put(Table& table, uint32_t hash, size_t length);
  static void Grow(Table& table);

  std::vector<int32_t> text_;
  std::array<Table, kLengths> tables_;
  // Where the text went on after the same last tokens, by their number; 0: nowhere.
  std::array<uint32_t, kLengths> earlier_{};
};

}  // namespace mk
