// DraftController: how many tokens of a guess are worth a verification pass.
//
// With a(i) the chance that the i-th drafted token is accepted when those before it were, a pass
// with n of them brings 1 + a(1) + a(1) a(2) + ... + a(1)..a(n) tokens on the average. The
// controller takes the n that brings most tokens per second, or 0. Chances are averages that
// forget, by the length of the match and the position in the draft; times are measured.
//
// Estimates err, and text changes. So there is an account, in seconds: every token pays a small
// part of its time in, a pass pays in what it saved and takes what it cost. A draft must be paid
// for by what is there if nothing of it is accepted. That bounds what speculation can cost where
// it brings nothing, however wrong an estimate is. Where it does not seem to pay, a short draft now
// and then finds out whether that is still so.
//
// It has no clock: the same calls give the same answers. It decides on speed only; what is
// generated does not depend on it.

#pragma once

#include <array>
#include <cstddef>

#include "engine/speculate/pass_costs.h"

namespace mk {

// One per sequence, one thread at a time.
class DraftController {
 public:
  static constexpr double kPaidIn = 0.01;    // part of every token's time
  static constexpr double kFirstPaid = 1.5;  // at the beginning, in single passes
  static constexpr double kMostPaid = 32;    // the account holds no more, in single passes
  static constexpr size_t kProbeEvery = 16;  // passes without a draft
  static constexpr size_t kProbeTokens = 2;

  // How many tokens of a draft of `length`, found after a match of `match` tokens, to verify in a
  // pass that carries `others` tokens of other sequences. 0 as long as `costs` knows nothing.
  size_t Choose(size_t match, size_t length, size_t others, const PassCosts& costs);

  // What became of the pass that Choose was last asked for: of `drafted` tokens (perhaps fewer than
  // were chosen) `accepted` were taken over.
  void Passed(size_t drafted, size_t accepted, const PassCosts& costs);

 private:
  static constexpr size_t kMatches = 6;
  static constexpr size_t kPositions = 5;
  struct Chance {
    double value = 0;
    double seen = 0;
  };

  static size_t MatchClass(size_t match);
  static size_t PositionClass(size_t position);
  double ChanceOf(size_t match_class, size_t position) const;
  // The largest part of `drafted` that the account pays for.
  size_t Affordable(size_t drafted, const PassCosts& costs) const;
  double Loss(size_t drafted, const PassCosts& costs) const;

  std::array<std::array<Chance, kPositions>, kMatches> chances_{};
  double account_ = 0;  // seconds
  bool opened_ = false;
  size_t without_draft_ = 0;  // passes since the last one with a draft
  // Of the pass that was last asked for.
  size_t match_class_ = 0;
  size_t others_ = 0;
};

}  // namespace mk
