#include "daemon/tensor_capture.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace mk::daemon {

static_assert(std::endian::native == std::endian::little, "rows are sent as they lie in memory");

void AppendRow(const std::string& kind, uint64_t position, std::span<const float> row,
               std::vector<protocol::Body>& messages) {
  const auto bytes = std::as_bytes(row);
  for (size_t offset = 0; offset < bytes.size(); offset += protocol::kMaxPieceBytes) {
    const auto piece =
        bytes.subspan(offset, std::min(protocol::kMaxPieceBytes, bytes.size() - offset));
    protocol::TensorChunk chunk;
    chunk.kind = kind;
    chunk.position = position;
    chunk.row_bytes = bytes.size();
    chunk.offset = offset;
    chunk.data.assign(reinterpret_cast<const char*>(piece.data()), piece.size());
    messages.emplace_back(std::move(chunk));
  }
}

void TensorCapture::Begin(size_t first, size_t tokens, size_t hidden) {
  first_ = first;
  tokens_ = tokens;
  taken_ = 0;
  hidden_ = hidden;
  if (want_hidden_) rows_.assign(tokens * layers_ * hidden, 0.0f);
  if (want_routes_) routes_.assign(tokens, {});
}

void TensorCapture::OnHidden(size_t, size_t position, size_t layer, std::span<const float> rows) {
  if (!want_hidden_ || position < first_ || layer >= layers_) return;
  const size_t count = rows.size() / hidden_;
  for (size_t i = 0; i < count; ++i) {
    const size_t token = position - first_ + i;
    if (token >= tokens_) return;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * hidden_), hidden_,
                rows_.begin() + static_cast<std::ptrdiff_t>((token * layers_ + layer) * hidden_));
  }
}

void TensorCapture::OnRouter(size_t, size_t position, size_t layer,
                             std::span<const int32_t> experts, std::span<const float> weights) {
  protocol::RoutesChunk* const routes = RoutesAt(position);
  if (routes == nullptr) return;
  protocol::RouterPick pick;
  pick.layer = static_cast<uint32_t>(layer);
  pick.experts.assign(experts.begin(), experts.end());
  pick.weights.assign(weights.begin(), weights.end());
  routes->layers.push_back(std::move(pick));
}

void TensorCapture::OnIndexer(size_t, size_t position, size_t layer, std::span<const int32_t> rows,
                              std::span<const float> scores) {
  protocol::RoutesChunk* const routes = RoutesAt(position);
  if (routes == nullptr || rows.empty()) return;
  routes->indexed.push_back(
      {static_cast<uint32_t>(layer), {rows.begin(), rows.end()}, {scores.begin(), scores.end()}});
}

void TensorCapture::OnCompressed(size_t, size_t position, size_t layer, size_t row,
                                 std::span<const float>) {
  protocol::RoutesChunk* const routes = RoutesAt(position);
  if (routes != nullptr) routes->compressed.push_back({static_cast<uint32_t>(layer), row});
}

protocol::RoutesChunk* TensorCapture::RoutesAt(size_t position) {
  const bool here = position >= first_ && position - first_ < tokens_;
  return want_routes_ && here ? &routes_[position - first_] : nullptr;
}

void TensorCapture::Take(size_t end, std::vector<protocol::Body>& messages) {
  for (; taken_ < tokens_ && first_ + taken_ < end; ++taken_) {
    const size_t token = taken_;
    if (want_hidden_) {
      AppendRow("hidden", first_ + token,
                std::span(rows_).subspan(token * layers_ * hidden_, layers_ * hidden_), messages);
    }
    if (want_routes_) {
      protocol::RoutesChunk& chunk = routes_[token];
      chunk.position = first_ + token;
      // Layers come in order, but not if a model looks at several of them at once.
      const auto by_layer = [](const auto& a, const auto& b) { return a.layer < b.layer; };
      std::stable_sort(chunk.layers.begin(), chunk.layers.end(), by_layer);
      std::stable_sort(chunk.indexed.begin(), chunk.indexed.end(), by_layer);
      std::stable_sort(chunk.compressed.begin(), chunk.compressed.end(), by_layer);
      messages.emplace_back(std::move(chunk));
    }
  }
}

}  // namespace mk::daemon
