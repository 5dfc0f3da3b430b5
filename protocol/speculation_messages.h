// What became of the drafts of a run that was asked to speculate. A part of RunDone.

#pragma once

#include <cstdint>
#include <vector>

namespace mk::protocol {

// Tokens that one draft may have: the limit of RunArgs::spec and spec_rosa.
inline constexpr uint32_t kMaxSpec = 64;

struct SpeculationReport {
  uint64_t passes = 0;    // forward passes with a draft
  uint64_t singles = 0;   // without one
  uint64_t drafted = 0;   // tokens
  uint64_t accepted = 0;  // of them, and part of the answer
  uint64_t rejected = 0;
  uint64_t bonus = 0;                 // passes that accepted all, and gave one token more
  std::vector<uint64_t> drafted_at;   // by position in the draft
  std::vector<uint64_t> accepted_at;  // the same
  double verify_ms = 0;               // passes with a draft, which others may have shared
  double rollback_ms = 0;             // forgetting what was not accepted
  bool operator==(const SpeculationReport&) const = default;
};

}  // namespace mk::protocol
