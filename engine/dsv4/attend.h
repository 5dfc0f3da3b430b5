// Attention of a batch's heads over rows: the window, then the compressed rows.

#pragma once

#include "engine/base/result.h"
#include "engine/dsv4/attention_layer.h"

namespace mk::dsv4 {

// Writes the mixes of all heads, [rows][H D], not yet turned back. The windows of the scratch are
// filled, the compressed rows of the batch are in the sequences, the indexer has picked.
//
// A query sees its rows in one order, whatever else is in the batch: those of the window by
// position, in tiles of 64 from its first one on; then the compressed ones, ascending, in tiles of
// 64 (of what was picked, or at multiples of 64).
Status Attend(const AttentionPass& pass);

}  // namespace mk::dsv4
