// TensorCapture: hidden states and picks of routers and indexers of one request, row by row, as
// messages.
//
// A forward pass shows them layer by layer for all its positions; clients want them position by
// position. It holds one item's worth; positions that are not taken before the next Begin() are
// dropped, as those of drafts that were not accepted.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "protocol/messages.h"

namespace mk::daemon {

class TensorCapture : public ForwardObserver {
 public:
  TensorCapture(size_t layers, bool hidden, bool routes)
      : layers_(layers), want_hidden_(hidden), want_routes_(routes) {}

  void OnHidden(size_t item, size_t position, size_t layer, std::span<const float> rows) override;
  void OnRouter(size_t item, size_t position, size_t layer, std::span<const int32_t> experts,
                std::span<const float> weights) override;
  void OnIndexer(size_t item, size_t position, size_t layer, std::span<const int32_t> rows,
                 std::span<const float> scores) override;
  void OnCompressed(size_t item, size_t position, size_t layer, size_t row,
                    std::span<const float> values) override;

  // Before a forward pass over `tokens` tokens from the absolute position `first` on, of a model
  // whose residual streams are `hidden` wide together.
  void Begin(size_t first, size_t tokens, size_t hidden);
  // Appends what the forward pass has shown of the positions before `end` that have not been taken
  // yet, in order.
  void Take(size_t end, std::vector<protocol::Body>& messages);

 private:
  // Of a position of this pass, if routes are wanted; else null.
  protocol::RoutesChunk* RoutesAt(size_t position);

  const size_t layers_;
  const bool want_hidden_;
  const bool want_routes_;
  size_t first_ = 0;
  size_t tokens_ = 0;
  size_t taken_ = 0;
  size_t hidden_ = 0;
  std::vector<float> rows_;                    // [token][layer][hidden]
  std::vector<protocol::RoutesChunk> routes_;  // [token]
};

// A row of f32 as chunks of at most kMaxPieceBytes, little-endian.
void AppendRow(const std::string& kind, uint64_t position, std::span<const float> row,
               std::vector<protocol::Body>& messages);

}  // namespace mk::daemon
