// ShadowDraft: guesses of the next tokens by the model itself, with shadows in the place of experts
// that are not in memory.
//
// The guessing passes run on a copy of the sequence and never wait for a disk; the guess is then
// verified by one pass that does, so that experts of several tokens are waited for together and the
// output is that of a plain run. A guess grows by two tokens over what was right the last time.
//
// One per generation, one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/speculate/speculator.h"

namespace mk {

class ShadowDraft {
 public:
  // Guesses of at most `longest` tokens.
  explicit ShadowDraft(size_t longest);

  // The item of the next guessing pass behind `sequence`, which holds all tokens of `emitted` but
  // the last; its logits [vocab] go to `logits`. At most `room` tokens are guessed. An item without
  // tokens: the guess is done.
  ForwardItem Next(const Sequence& sequence, std::span<const int32_t> emitted, size_t room,
                   std::span<float> logits);
  // Whether the item that was run last was one of Next.
  bool running() const { return running_; }
  // After it has run: takes the next token of the guess from its logits, with the draw that the
  // token at its place will have. `stop_ids` end a guess.
  void Accept(Sampler& sampler, uint64_t draws, std::span<const int32_t> emitted,
              std::span<const float> logits, std::span<const int32_t> stop_ids);
  // The guess, which is then forgotten.
  std::vector<int32_t> Take();
  // What became of it: `seconds` to forget what was wrong; `bonus`: it was right and one token more
  // was won.
  void Verified(size_t drafted, size_t accepted, bool bonus, double seconds);

  const SpeculationStats& stats() const { return stats_; }

 private:
  const size_t longest_;
  size_t next_;                     // tokens of the next guess
  std::unique_ptr<Sequence> twin_;  // null: no guess has begun
  std::vector<int32_t> tokens_;     // guessed so far
  std::vector<int32_t> text_;       // emitted and guessed, for the sampler
  int32_t fed_ = 0;                 // token of the item
  bool running_ = false;
  bool ended_ = false;  // nothing more is guessed
  SpeculationStats stats_;
};

}  // namespace mk
