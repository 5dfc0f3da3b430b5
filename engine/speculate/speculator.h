// Speculator: drafts for one sequence, and what became of them.
//
// It sees the tokens of the sequence, guesses what comes next (suffix automaton first, then
// n-grams, see there), and lets a controller say how much of a guess is worth verifying. Whoever
// uses it verifies: what is generated never depends on it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/speculate/draft_controller.h"
#include "engine/speculate/ngram_proposer.h"
#include "engine/speculate/pass_costs.h"
#include "engine/speculate/suffix_automaton.h"

namespace mk {

// Tokens that a draft may have.
inline constexpr uint32_t kMaxDraft = 64;

struct SpeculationOptions {
  // Longest drafts of the two proposers, at most kMaxDraft; 0: it is off. With both on, drafts of
  // either may be as long as the larger one says.
  uint32_t ngram = 0;
  uint32_t automaton = 0;
  // False: verify every guess, whether it pays or not. For tests.
  bool adaptive = true;
  // Longest draft by shadows of experts (ShadowDraft), in the place of the two; 0: off.
  uint32_t shadow = 0;

  bool on() const { return ngram > 0 || automaton > 0; }
  bool any() const { return on() || shadow > 0; }
  size_t longest() const { return std::max({ngram, automaton, shadow}); }
};

struct SpeculationStats {
  uint64_t passes = 0;    // with a draft
  uint64_t singles = 0;   // steps without one
  uint64_t drafted = 0;   // tokens
  uint64_t accepted = 0;  // of them
  uint64_t bonus = 0;     // passes whose draft was accepted whole and that gave one token more
  std::vector<uint64_t> drafted_at;   // by position in the draft
  std::vector<uint64_t> accepted_at;  // the same
  double verify_seconds = 0;          // of passes with a draft, shared with other sequences
  double rollback_seconds = 0;        // forgetting what was not accepted

  uint64_t rejected() const { return drafted - accepted; }
};

// One per sequence, one thread at a time.
class Speculator {
 public:
  // `vocab`: ids from this one on are never proposed. `costs`: shared with other sequences of the
  // same model and thread; null: its own.
  Speculator(const SpeculationOptions& options, size_t vocab, std::shared_ptr<PassCosts> costs);

  // The most that it holds for a sequence of so many tokens, in bytes.
  static uint64_t MaxBytes(const SpeculationOptions& options, size_t tokens);

  // Looks at the tokens of the sequence, `prompt` and then `emitted`, that it has not seen yet, but
  // only at so many that the caller is not held up; true when it has seen all of them.
  bool CatchUp(std::span<const int32_t> prompt, std::span<const int32_t> emitted);
  // What to verify next, at most `most` tokens; empty: a plain step. After CatchUp gave true.
  // Valid until the next call.
  std::span<const int32_t> NextDraft(size_t most);
  // The forward pass, with a draft or without, carried `rows` tokens of all sequences together,
  // `own` of them of this one, and took so long. Before Verified; may be left out.
  void Took(size_t rows, size_t own, double seconds);
  // What became of a draft of `drafted` tokens, perhaps 0, in which `accepted` were taken over;
  // `bonus`: another token came after all of them.
  void Verified(size_t drafted, size_t accepted, bool bonus, double rollback_seconds);

  const SpeculationStats& stats() const { return stats_; }
  const SpeculationOptions& options() const { return options_; }

 private:
  // Tokens that CatchUp looks at in one call: a millisecond or two.
  static constexpr size_t kFeedAtOnce = 1024;

  Draft Guess(size_t most) const;
  void Clear();
  void Feed(int32_t token);

  const SpeculationOptions options_;
  const size_t vocab_;
  std::shared_ptr<PassCosts> costs_;
  std::optional<SuffixAutomaton> automaton_;
  std::optional<NgramProposer> ngram_;
  DraftController controller_;
  std::vector<int32_t> draft_;
  size_t seen_ = 0;    // tokens of the sequence that were fed, or passed over as too old
  size_t held_ = 0;    // of them, in the proposers
  size_t others_ = 0;  // tokens of other sequences in the last pass
  bool gave_up_ = false;
  SpeculationStats stats_;
};

}  // namespace mk
