// SuffixAutomaton: guesses that a text goes on as it mostly did after the longest suffix that
// occurred before.
//
// The online suffix automaton (Blumer et al.: "The smallest automaton recognizing the subwords of a
// text", 1985): a state stands for substrings that end at the same places, `length` is that of the
// longest of them, the suffix link leads to the longest suffix that ends at more places. Beside the
// transitions a state counts which tokens followed it lately: a count halves in kHalfLife tokens.
//
// Feeding a token counts it for the states of the last kMaxLinks suffixes, longest first; a state
// that is split off inherits the counts. What a state counts is a subset of its transitions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/speculate/token_history.h"

namespace mk {

// One thread at a time.
class SuffixAutomaton {
 public:
  static constexpr size_t kMaxLinks = 32;
  static constexpr size_t kMaxSuccessors = 8;  // counted per state
  static constexpr double kHalfLife = 256;     // tokens
  static constexpr float kLeastScore = 0.25f;  // of a token to be proposed

  // Proposes nothing after a match of fewer tokens than `shortest`.
  explicit SuffixAutomaton(size_t shortest = 2);

  // The next token of the text; at most kMaxHistory of them. Errors of allocation as
  // std::bad_alloc. Constant time on the average.
  void Feed(int32_t token);
  // From the longest suffix that occurred before on, token by token the one of the highest count
  // (of equal ones the latest, then the lowest id); where none counts enough, of a shorter suffix.
  Draft Propose(size_t most) const;
  void Clear();

  size_t size() const { return tokens_; }
  size_t bytes() const;  // held now
  // The most that it holds after so many tokens.
  static size_t MaxBytes(size_t tokens);

 private:
  using Index = uint32_t;
  static constexpr Index kNone = UINT32_MAX;
  static constexpr Index kRoot = 0;

  struct State {
    uint32_t length = 0;
    Index link = kNone;
    Index edges = kNone;  // first of its list
    Index successors = kNone;
  };
  struct Edge {
    int32_t token = 0;
    Index from = 0;
    Index to = 0;
    Index next = kNone;  // of the same state
  };
  struct Successor {
    int32_t token = 0;
    float count = 0;  // at `stamp`
    uint32_t stamp = 0;
    Index next = kNone;
  };

  Index NewState(size_t length);
  Index Split(Index state, size_t length);
  void Extend(int32_t token);
  size_t SlotOf(Index state, int32_t token) const;
  // kNone: there is none.
  Index FindEdge(Index state, int32_t token) const;
  void AddEdge(Index from, int32_t token, Index to);
  void GrowTable();
  void Count(Index state, int32_t token);
  float Score(const Successor& successor) const;
  bool Better(const Successor& a, const Successor& b) const;
  // Null: no successor counts enough.
  const Successor* Best(Index state) const;

  size_t shortest_;
  uint32_t tokens_ = 0;
  Index tip_ = kRoot;
  std::vector<State> states_;          // at most 2 per token
  std::vector<Edge> edges_;            // at most 3 per token
  std::vector<Successor> successors_;  // the same
  std::vector<Index> table_;           // edges by state and token; a power of two, kNone: free
};

}  // namespace mk
