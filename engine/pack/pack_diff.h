// How two packs differ: array by array, and by what a model says after each of them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/executor.h"
#include "engine/pack/pack_file.h"

namespace mk {

// One array of both packs. Values are compared as numbers where the arrays hold numbers.
struct SectionDifference {
  PackSection section;     // of the first
  uint64_t different = 0;  // elements that differ
  double largest = 0;      // |a - b|; 0 for bytes
  double relative = 0;     // ||a - b|| / ||a||; 0 for bytes and when a is 0
};

struct PackDifference {
  bool same_model = false;  // as far as the packs tell
  bool same_precision = false;
  size_t common_tokens = 0;  // length of the common prefix of their tokens, when both have some
  bool identical = false;    // every array, the logits and the tokens
  std::vector<SectionDifference> sections;  // arrays that both have with equal shapes
  size_t unmatched = 0;                     // arrays that only one has, or with another shape
};

// Reads both packs whole. Errors: those of VerifyPack.
Result<PackDifference> DiffPacks(const std::string& a, const std::string& b);

// What a model says after a pack: the tokens that it would choose first, one after the other,
// whatever ends a text.
struct Divergence {
  std::vector<std::vector<int32_t>> tokens;  // [packs][max_new]
  std::vector<size_t> equal;                 // positions equal to the first pack's, [packs]
};

// Continues every pack by `prompt`, which may be empty if all have logits, and max_new greedy
// tokens; of equal logits the highest id wins, as in the reference. Errors: those of LoadPack and
// Forward, kInvalidArgument without prompt and logits.
Result<Divergence> ComparePacks(const std::vector<std::string>& packs, const Model& model,
                                Executor& executor, std::span<const int32_t> prompt, size_t max_new,
                                const LoadPackOptions& options = {});

}  // namespace mk
