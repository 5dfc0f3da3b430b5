// Dsv4Sequence: the state of one timeline.
//
// Per layer, in rings of fixed size: the rows of the last positions that attention sees as they
// are, and what the last tokens gave to the compressors. Growing: one compressed row per group of
// tokens, and one index key beside it in indexed layers. Compressed rows live in pages of 64 rows
// that hold all layers of one ratio. A clone shares everything; whoever writes first takes a copy
// of the rings and of the pages that are not full.
//
// The rings hold some tokens more than the next one needs, so that a sequence can go back by
// kRewindTokens: groups closed since then are forgotten by count, and the rings still hold what
// came before.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/arch/model_sequence.h"
#include "engine/base/result.h"
#include "engine/dsv4/shape.h"
#include "engine/model/model.h"
#include "engine/parallel/shared_page.h"

namespace mk::dsv4 {

class Dsv4Sequence final : public ModelSequence {
 public:
  // `owner` tells the sequences of one model from those of another. kOutOfMemory.
  static Result<std::unique_ptr<Dsv4Sequence>> Create(const void* owner,
                                                      std::shared_ptr<const Dsv4Shape> shape,
                                                      const SequenceOptions& options);

  size_t state_bytes() const override;
  void VisitPages(FunctionRef<void(const SharedPage&)> visit) const override;
  Result<std::unique_ptr<Sequence>> Clone() const override;
  size_t rewindable() const override;
  Status Rewind(size_t length) override;
  Status Reserve(size_t tokens) override;
  void ReadState(const StateSection& section, std::span<std::byte> out) const override;
  Status Grow(const StateKey& key) override;
  bool WriteState(const StateSection& section, std::span<const std::byte> in) override;

  // Kept row (fp8_rows.h) of one of the last window_slots() positions. The slots of a layer follow
  // each other at cached_row().bytes(); a position has slot position % window_slots().
  std::byte* WindowSlots(size_t layer) const { return rings_.data() + offsets_[layer].window; }
  // What a token gave to the compressor of a layer: [2][c D], values, then scores. Of the last
  // compressor_slots() positions.
  float* CompressorHistory(size_t layer, size_t position) const {
    return History(layer, offsets_[layer].compressor, shape_->compressor_width(layer), position);
  }
  // The same for the indexer: [2][2 Di].
  float* IndexHistory(size_t layer, size_t position) const {
    return History(layer, offsets_[layer].index, 2 * shape_->index_dim, position);
  }

  // Kept form of a compressed row that has been reserved; the rows of a page follow each other at
  // cached_row().bytes().
  std::byte* CompressedRow(size_t layer, size_t row) const {
    return PageOf(layer, row) + row % kPageRows * shape_->cached_row().bytes();
  }
  // The tile of index keys that holds the one of a row: a packed matrix of [64, Di].
  std::byte* KeyTile(size_t layer, size_t row) const {
    return PageOf(layer, row) + shape_->page_rows_bytes();
  }

 private:
  // Of the rings of a layer, in bytes from the start of `rings_`.
  struct Offsets {
    size_t window = 0;
    size_t compressor = 0;
    size_t index = 0;
  };

  Dsv4Sequence(const void* owner, std::shared_ptr<const Dsv4Shape> shape,
               const SequenceOptions& options);
  float* History(size_t layer, size_t offset, size_t width, size_t position) const {
    const size_t slot = position % shape_->compressor_slots(layer);
    return reinterpret_cast<float*>(rings_.data() + offset) + slot * 2 * width;
  }
  std::byte* PageOf(size_t layer, size_t row) const {
    const size_t c = shape_->class_of[layer];
    return pages_[c][row / kPageRows].data() +
           shape_->index_in_class[layer] * shape_->page_layer_bytes(shape_->classes[c].indexed);
  }
  // Where row `row` of an array lies that is kept as it is saved: not those of index keys.
  std::byte* StateRow(const StateSection& section, size_t row) const;
  size_t PageBytes(size_t ratio_class) const;
  Status ReserveClass(size_t ratio_class, size_t tokens);

  std::shared_ptr<const Dsv4Shape> shape_;
  std::vector<Offsets> offsets_;  // [layers]
  SharedPage rings_;
  std::vector<std::vector<SharedPage>> pages_;  // [classes]
  // Tokens that the rings have seen: a slot holds the last position below this that belongs to it.
  size_t written_ = 0;
};

}  // namespace mk::dsv4
