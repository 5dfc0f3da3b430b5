// Arithmetic on the recurrent matrices of KDA layers, file by file. K3 only: rows of attention and
// the rings of DSV4 have no meaning that could be scaled or added.
//
// Decay multiplies the matrices by f32(2^(-units / half_life)). Merge adds those of all packs, in
// the order given, and divides by their number when it is to be the average. Blend takes alpha of
// the first and 1 - alpha of the second, of the windows of the convolutions too. Everything else,
// rows of latent attention included, comes unchanged from the first pack: what the result remembers
// word by word is the first text alone.
//
// Results are marked experimental. They hold no logits, which would be those of another state, and
// no tokens but as provenance: a cache of prefixes must not take them for the state of a text.
// Packs of MKMEM001 have no marks; their results are MKMEM001 without logits.
//
// All packs of an operation have one format, one model, one precision and one length of rows.
// Errors: those of LoadPack; kUnsupported for other architectures; kIncompatible for packs that do
// not belong together; kInvalidArgument for parameters out of range; kNumeric when a sum is not
// finite; those of SavePack. The result appears whole or not at all, and may replace an input.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/pack/pack_format.h"

namespace mk {

struct PackTarget {
  std::string path;
  bool replace = true;  // as SavePackOptions
};

// half_life > 0, units >= 0, in the same unit of age.
Result<PackInfo> DecayPack(const std::string& from, double half_life, double units,
                           const PackTarget& to);

struct MergeOptions {
  bool average = false;
  // The matrices of this input (1-based, at least 2) are shuffled before they are added: what a
  // merge does that has nothing to do with the second text. See ShuffleControl.
  std::optional<size_t> shuffle;
};
// At least two packs. MKMEM002 sums in f64 and rounds once, MKMEM001 in f32 as the reference does.
Result<PackInfo> MergePacks(const std::vector<std::string>& from, const MergeOptions& options,
                            const PackTarget& to);

// alpha a + (1 - alpha) b, in f32; alpha from 0 to 1.
Result<PackInfo> BlendPacks(const std::string& a, const std::string& b, double alpha,
                            const PackTarget& to);

// The control experiment's permutation of a vector, for input `number`: xorshift from
// (0x9E3779B97F4A7C15 + number) or 1; for i from the end down to 1, swap i with x mod (i + 1).
void ShuffleControl(std::span<float> values, uint64_t number);

}  // namespace mk
