// K3Sequence: the state of one timeline.
//
// Per KDA layer, fixed size: the last taps-1 inputs of the three short convolutions and one D x D
// matrix per head. Per MLA layer, one row per position: the latent and the shared key (as bytes in
// q8), or (expanded) the keys and values of every head. Rows live in pages of 64 positions that
// hold all MLA layers; full pages are never written again. A clone shares everything; whoever
// writes first takes a copy of the fixed part and of the page that is not full.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/arch/model_sequence.h"
#include "engine/base/result.h"
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
  Status Reserve(size_t tokens) override;
  void ReadState(const StateSection& section, std::span<std::byte> out) const override;
  Status Grow(const StateKey& key) override;
  bool WriteState(const StateSection& section, std::span<const std::byte> in) override;

  // ---- KDA: `layer` counts KDA layers ----
  // [taps-1][P], row 0 the oldest; stream 0, 1, 2 = q, k, v.
  float* ConvHistory(size_t layer, size_t stream) const;
  // [D][D], key channel by value channel.
  float* Matrix(size_t layer, size_t head) const;

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

  std::shared_ptr<const K3Shape> shape_;
  size_t kv_row_;
  SharedPage kda_;  // [KDA layers][conv q, k, v, matrices]
  std::vector<SharedPage> pages_;
};

}  // namespace mk::k3
