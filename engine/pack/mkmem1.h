// MKMEM001, the pack format of the reference engine, for interchange: K3 only, always f32, rows of
// latent attention multiplied out for every head, no checksums.
//
//   "MKMEM001"; u32 layers, hidden, kda_heads, kda_dim, vocab; u8 kind of every layer (0 KDA, 1
//   MLA); then per layer its kind once more and its vectors: KDA conv_q, conv_k, conv_v, s; MLA k,
//   v; then the vector of logits. A vector is a u32 count and so many f32. What follows is ignored.

#pragma once

#include <string>

#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/pack/pack_format.h"

namespace mk {

inline constexpr size_t kMkmem1HeaderBytes = 8 + 5 * 4;

// Whether a file starts like one.
bool IsMkmem1(std::span<const std::byte> start);

// Finds the vectors of a file. Sections of the result: per KDA layer three of kKdaConv and one of
// kKdaMatrix, per MLA layer kExpandedKeys and kExpandedValues, then kLogits; dims are {count, 1,
// 1}. key.length stays 0: the widths of rows are not in the file. kCorrupt.
Result<PackInfo> IndexMkmem1(const OpenedFile& file, const std::string& path);

// Header, kinds, and what precedes the vectors of a layer: for writers.
std::string Mkmem1Header(const PackInfo::Shape& shape);

}  // namespace mk
