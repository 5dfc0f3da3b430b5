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
//
// What a draft would put into the rings is kept apart from them, so that they do not lose what
// going back behind the draft takes: a sequence that drafted keeps what any other one does. The
// next forward pass takes into the rings what is still there.

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

// What drafts of up to so many tokens hold.
uint64_t DraftBytes(const Dsv4Shape& shape, size_t tokens);

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
  Status EndDraft() override;
  Status Reserve(size_t tokens, bool draft) override;
  void Begin(size_t tokens, bool draft) override;
  size_t kept_rewindable() const override { return RewindableAt(length()); }
  void ReadState(const StateSection& section, std::span<std::byte> out) const override;
  Status Grow(const StateKey& key) override;
  bool WriteState(const StateSection& section, std::span<const std::byte> in) override;

  // Kept rows (fp8_rows.h) of the last window_slots() positions before the draft. The slots of a
  // layer follow each other at cached_row().bytes(); a position has slot position % window_slots().
  std::byte* WindowSlots(size_t layer) const { return rings_.data() + offsets_[layer].window; }
  // Kept row of one of these positions, or of one in the draft.
  std::byte* WindowRow(size_t layer, size_t position) const {
    return Row(position, &Offsets::window, layer, shape_->window_slots(),
               shape_->cached_row().bytes());
  }
  // What a token gave to the compressor of a layer: [2][c D], values, then scores. Of the last
  // compressor_slots() positions before the draft, and those in it.
  float* CompressorHistory(size_t layer, size_t position) const {
    return History(layer, &Offsets::compressor, shape_->compressor_width(layer), position);
  }
  // The same for the indexer: [2][2 Di].
  float* IndexHistory(size_t layer, size_t position) const {
    return History(layer, &Offsets::index, 2 * shape_->index_dim, position);
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
  // Of the rings of a layer, or of what a draft keeps apart from them, in bytes.
  struct Offsets {
    size_t window = 0;
    size_t compressor = 0;
    size_t index = 0;
  };

  Dsv4Sequence(const void* owner, std::shared_ptr<const Dsv4Shape> shape,
               const SequenceOptions& options);
  struct Draft {
    SharedPage rows;
    size_t capacity = 0;           // tokens
    std::vector<Offsets> offsets;  // [layers]
  };
  // body(part, its slots in the rings, bytes of a row) for what a layer has.
  template <typename Body>
  void ForParts(size_t layer, const Body& body) const {
    body(&Offsets::window, shape_->window_slots(), shape_->cached_row().bytes());
    if (shape_->ratio[layer] == 0) return;
    const size_t slots = shape_->compressor_slots(layer);
    body(&Offsets::compressor, slots, 2 * shape_->compressor_width(layer) * sizeof(float));
    if (shape_->indexed(layer)) body(&Offsets::index, slots, 4 * shape_->index_dim * sizeof(float));
  }
  // Offsets of all layers: of the rings, or of a draft of so many tokens if there are any.
  std::vector<Offsets> LayOut(size_t draft_tokens) const;
  // A row of `bytes` in the rings or in the draft.
  std::byte* RingRow(size_t Offsets::*part, size_t layer, size_t slot, size_t bytes) const {
    return rings_.data() + offsets_[layer].*part + slot * bytes;
  }
  std::byte* DraftRow(size_t Offsets::*part, size_t layer, size_t token, size_t bytes) const {
    return draft_.rows.data() + draft_.offsets[layer].*part + token * bytes;
  }
  std::byte* Row(size_t position, size_t Offsets::*part, size_t layer, size_t slots,
                 size_t bytes) const {
    return position < settled_ ? RingRow(part, layer, position % slots, bytes)
                               : DraftRow(part, layer, position - settled_, bytes);
  }
  float* History(size_t layer, size_t Offsets::*part, size_t width, size_t position) const {
    return reinterpret_cast<float*>(
        Row(position, part, layer, shape_->compressor_slots(layer), 2 * width * sizeof(float)));
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
  Status ReserveDraft(size_t tokens);
  // By how much a sequence of this length can go back with what the rings hold.
  size_t RewindableAt(size_t length) const;
  // Takes what there is of the draft into the rings, which are its own.
  void TakeDraft();

  std::shared_ptr<const Dsv4Shape> shape_;
  std::vector<Offsets> offsets_;  // [layers]
  SharedPage rings_;
  std::vector<std::vector<SharedPage>> pages_;  // [classes]
  // Tokens that the rings have seen: a slot holds the last position below this that belongs to it.
  size_t written_ = 0;
  // Tokens that are in the rings, of those that have not been forgotten. Fewer than length(): the
  // rest came in the draft.
  size_t settled_ = 0;
  Draft draft_;
};

}  // namespace mk::dsv4
