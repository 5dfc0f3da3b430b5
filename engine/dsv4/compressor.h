// Compressors: a group of r consecutive tokens becomes one row, which attention sees from the
// token on that closes the group.
//
//   values = Wv a;  scores = Ws a + bias[p mod r]            per token, c w numbers each
//   row    = rope(rms(sum over entries of softmax(scores) values), first position of the group)
//
// with the softmax over the entries, for every channel apart. Plain groups (c = 1): the entries are
// the tokens of the group. Overlapping groups (r = 4, c = 2): the second halves of its tokens, and
// before them the first halves of the tokens of the group before, if there is one.
//
// The rows of attention (w = D) are then rounded as cached rows are (fp8_rows.h). In indexed layers
// a second compressor (w = Di) makes the keys of the indexer: after the rotation a Hadamard
// transform, then FP4 (fp4_rows.h).

#pragma once

#include "engine/base/result.h"
#include "engine/dsv4/attention_layer.h"

namespace mk::dsv4 {

// Makes the rows of all groups that end within the batch and appends them to the sequences. Needs
// the inputs of the batch's rows, scores biased, and the history of those before. kNumeric.
Status CompressGroups(const AttentionPass& pass);

}  // namespace mk::dsv4
