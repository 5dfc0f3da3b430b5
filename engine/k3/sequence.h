// K3Sequence: the state of one timeline.
//
// Per KDA layer, fixed size: the last taps-1 inputs of the three short convolutions and one D x D
// matrix per head. Per MLA layer, one row per position: the latent and the shared key (as bytes in
// q8), or (expanded) the keys and values of every head. Rows live in pages of 64 positions that
// hold all MLA layers; full pages are never written again. A clone shares everything; whoever
// writes first takes a copy of the fixed part and of the page that is not full.
//
// After a draft the fixed part is still that of the tokens before it (kda_draft.h), and rows are
// forgotten by count: going back is a matter of numbers, and the next forward pass makes up for it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/arch/model_sequence.h"
#include "engine/base/result.h"
#include "engine/k3/kda_draft.h"
#include "engine/k3/shape.h"
#include "engine/kernels/latent_bytes.h"
#include "engine/model/model.h"
#include "engine/parallel/shared_page.h"

namespace mk::k3 {

// Positions of a page.
inline constexpr size_t kPageTokens = 64;

class K3Sequence final : public ModelSequence {
 public:
  // `owner` tells the sequences of one model from those of another. kOutOfMemory.
  static Result<std::unique_ptr<K3Sequence>> Create(const void* owner,
                                                    std::shared_ptr<const K3Shape> shape,
                                                    const SequenceOptions& options);

  size_t state_bytes() const override;
  void VisitPages(FunctionRef<void(const SharedPage&)> visit) const override;
  Result<std::unique_ptr<Sequence>> Clone() const override;
  size_t rewindable() const override { return settled_ < length() ? length() - settled_ : 0; }
  Status Rewind(size_t length) override;
  Status EndDraft() override;
  Status Reserve(size_t tokens, bool draft) override;
  void Begin(size_t tokens, bool draft) override;
  void ReadState(const StateSection& section, std::span<std::byte> out) const override;
  Status Grow(const StateKey& key) override;
  bool WriteState(const StateSection& section, std::span<const std::byte> in) override;

  // ---- KDA: `layer` counts KDA layers ----
  // State of a layer after a pass, and before it. The same memory but in a draft, whose pass leaves
  // the state before it alone.
  struct KdaState {
    // [taps-1][P], row 0 the oldest; stream 0, 1, 2 = q, k, v.
    float* Window(size_t stream) const { return data + stream * shape->conv_floats(); }
    // [D][D], key channel by value channel.
    float* Matrix(size_t head) const { return Window(3) + head * shape->kda_dim * shape->kda_dim; }
    float* data;
    const K3Shape* shape;
  };
  KdaState Before(size_t layer) const { return StateIn(kda_, layer); }
  KdaState After(size_t layer) const {
    return StateIn(settled_ == length() ? draft_.state : kda_, layer);
  }
  // Tokens of the last draft through which a pass first takes the state before it, and their rows,
  // or those that the pass itself keeps when it is a draft.
  size_t replay() const { return replay_; }
  float* DraftRows(size_t layer) const { return draft_.Rows(*shape_, layer); }

  // ---- MLA: `layer` counts MLA layers ----
  // Floats of a row: r_kv + rho, or expanded M (n + rho) keys, then M v values.
  size_t kv_row() const { return kv_row_; }
  // Rows are kept as bytes: tiles of latent_bytes.h, one per page and layer.
  bool byte_kv() const { return options().precision == Precision::kQ8 && !options().expanded_kv; }
  LatentShape byte_shape() const { return {shape_->kv_rank, shape_->rope}; }
  std::byte* KvTile(size_t layer, size_t position) const {
    return pages_[position / kPageTokens].data() + layer * byte_shape().tile_bytes();
  }
  // Row of a position that has been reserved; the rows of a page follow each other at kv_row(). Not
  // for bytes.
  float* KvRow(size_t layer, size_t position) const {
    float* page = pages_[position / kPageTokens].floats().data();
    return page + (layer * kPageTokens + position % kPageTokens) * kv_row_;
  }

 private:
  K3Sequence(const void* owner, std::shared_ptr<const K3Shape> shape,
             const SequenceOptions& options);
  size_t page_bytes() const;
  KdaState StateIn(const SharedPage& page, size_t layer) const {
    return {page.floats().data() + layer * shape_->kda_state_floats(), shape_.get()};
  }
  // The draft was taken as a whole: its state is the sequence's.
  bool draft_taken() const { return settled_ < length() && drafted_ == length(); }
  void TakeDraft();
  // Writes the state of a layer that kda_ does not hold yet: windows [3][taps-1][P], or matrices
  // [H][D][D]. Both may be where kda_ has them.
  void ReplayWindows(size_t layer, float* out) const;
  void ReplayMatrices(size_t layer, float* out) const;

  std::shared_ptr<const K3Shape> shape_;
  size_t kv_row_;
  SharedPage kda_;  // [KDA layers][conv q, k, v, matrices]
  // Tokens that kda_ has seen. Fewer than length(): the rest came in the draft.
  size_t settled_ = 0;
  size_t drafted_ = 0;  // tokens that draft_.state has seen; 0: it is not valid
  size_t replay_ = 0;   // during a pass
  KdaDraft draft_;
  std::vector<SharedPage> pages_;
};

}  // namespace mk::k3
