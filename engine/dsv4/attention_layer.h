// The attention of a layer. With a the normalised input of a token at position p, and rope the
// rotation of the last R values of a head (rotary.h):
//
//   zn = rms(Wq_a a);   q_h = rope(unit(Wq_b zn)_h, p)             unit: x / sqrt(mean(x^2) + eps)
//   v  = fp8(rope(rms(Wkv a), p))        one row for all heads, key and value alike
//   s_t = (q_h . row_t) D^-1/2           over the rows of the last W positions, then over
//                                        compressed rows (compressor.h; those that the indexer
//                                        picks, in indexed layers)
//   M = max(max s_t, sink_h)
//   o_h = sum_t e^{s_t - M} row_t / (e^{sink_h - M} + sum_t e^{s_t - M}),  turned back by p
//   y = Wo_b concat_g( Wo_a^g o_g )      o_g: the heads of group g
//
// fp8 rounds all but the rotated values (fp8_rows.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/dsv4/batch.h"
#include "engine/dsv4/rotations.h"
#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"

namespace mk::dsv4 {

// A group of tokens that ends within a batch.
struct ClosedGroup {
  const BatchItem* item = nullptr;
  size_t group = 0;  // its compressed row
};

// The rows of an item that attention sees as they are: positions [first, item end), in order.
struct ItemWindow {
  float* rows = nullptr;  // [..][D]
  size_t first = 0;
};

// Scratch of the attention of all layers of a forward pass.
struct AttentionScratch {
  AttentionScratch(const Dsv4Shape& shape, const Batch& batch);

  Rotations rotations;
  std::span<const BatchItem*> item_of_row;         // [rows]
  std::span<std::span<const ClosedGroup>> closed;  // [classes]
  std::span<ItemWindow> windows;                   // [items]
  float* input;                                    // [rows][InputParts::width]
  Activations latent;                              // [rows][Q]: zn
  float* query;                                    // [rows][H D (+ Hi Di)]
  Q8Rows index_query;                              // [rows Hi][Di], when rounded
  std::byte* kept_rows;                            // [rows] kept rows (fp8_rows.h)
  Activations heads;                               // [rows][H D]: o, bytes by group
  Activations group_out;                           // [rows][G P]
  // What the indexer picks for a row: [rows][most_picks], ascending, and how many.
  std::span<int32_t> picks;
  std::span<uint32_t> pick_count;
  std::span<float> pick_scores;  // [rows][most_picks], for an observer only
  size_t most_picks;
  std::span<float> tiles;  // [workers][64][D]: compressed rows as floats

  size_t position(size_t row) const {
    return item_of_row[row]->position + row - item_of_row[row]->first_row;
  }
  // Columns of `query`.
  static size_t QueryWidth(const Dsv4Shape& shape, size_t layer) {
    return shape.heads_width() + (shape.indexed(layer) ? shape.index_width() : 0);
  }
};

// One layer's attention in one pass.
struct AttentionPass {
  const Dsv4Shape& shape;
  const AttentionWeights& weights;
  size_t layer;
  const Batch& batch;
  const AttentionScratch& scratch;
  InputParts parts;

  size_t input_stride() const { return parts.width; }
  float* Input(size_t row) const { return scratch.input + row * parts.width; }
};

// x [rows][d], normalised; writes the attention output to y [rows][d] and takes the tokens into the
// state of every sequence. kNumeric for keys or scores that are not finite.
Status AttentionForward(const Dsv4Shape& shape, const AttentionWeights& weights, size_t layer,
                        const Batch& batch, const AttentionScratch& scratch, const Activations& x,
                        float* y);

}  // namespace mk::dsv4
