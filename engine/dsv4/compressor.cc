#include "engine/dsv4/compressor.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "engine/kernels/channel_pool.h"
#include "engine/kernels/fp4_rows.h"
#include "engine/kernels/hadamard.h"
#include "engine/kernels/rotary.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

// Buffers of one worker.
struct PoolScratch {
  std::span<PooledRow> entries;  // [2 r]
  std::span<float> row;          // [max(D, Di)]
  std::span<float> angles;       // [R]
};

// One of the two compressors of a layer, at one group.
class GroupPool {
 public:
  GroupPool(const AttentionPass& pass, const ClosedGroup& closed, bool index,
            const PoolScratch& scratch)
      : pass_(pass), closed_(closed), index_(index), scratch_(scratch) {
    const Dsv4Shape& shape = pass.shape;
    ratio_ = shape.ratio[pass.layer];
    width_ = index ? shape.index_dim : shape.head_dim;
    token_width_ = shape.halves(pass.layer) * width_;
    column_ = index ? pass.parts.index_values : pass.parts.values;
  }

  // Pools, normalises and rotates: the row before it is rounded.
  std::span<float> Run(std::span<const float> norm) const {
    const size_t first = closed_.group * ratio_;
    size_t count = 0;
    if (pass_.shape.indexed(pass_.layer)) {
      for (size_t t = 0; closed_.group > 0 && t < ratio_; ++t) {
        scratch_.entries[count++] = Entry(first - ratio_ + t, 0);
      }
      for (size_t t = 0; t < ratio_; ++t) scratch_.entries[count++] = Entry(first + t, width_);
    } else {
      for (size_t t = 0; t < ratio_; ++t) scratch_.entries[count++] = Entry(first + t, 0);
    }
    const std::span<float> row = scratch_.row.first(width_);
    PoolChannels(scratch_.entries.first(count), row);
    RmsNorm(row, norm, pass_.shape.epsilon, row);
    Rotate(pass_.scratch.rotations.OfPosition(*closed_.item, first, scratch_.angles),
           row.last(pass_.shape.rope));
    return row;
  }

 private:
  // What the token at a position gave, from channel `offset` on.
  PooledRow Entry(size_t position, size_t offset) const {
    const BatchItem& item = *closed_.item;
    const float* values;
    if (position >= item.position) {
      values = pass_.Input(item.first_row + position - item.position) + column_;
    } else {
      values = index_ ? item.sequence->IndexHistory(pass_.layer, position)
                      : item.sequence->CompressorHistory(pass_.layer, position);
    }
    return {values + offset, values + token_width_ + offset};
  }

  const AttentionPass& pass_;
  const ClosedGroup& closed_;
  const bool index_;
  const PoolScratch& scratch_;
  size_t ratio_;
  size_t width_;
  size_t token_width_;
  size_t column_;  // of the values in the input; the scores follow them
};

bool MakeRow(const AttentionPass& pass, const ClosedGroup& closed, const PoolScratch& scratch) {
  const GroupPool pool(pass, closed, false, scratch);
  const std::span<float> row = pool.Run(pass.weights.compressor.norm);
  return StoreCachedRow(pass.shape.cached_row(), row,
                        closed.item->sequence->CompressedRow(pass.layer, closed.group));
}

bool MakeKey(const AttentionPass& pass, const ClosedGroup& closed, const PoolScratch& scratch) {
  const GroupPool pool(pass, closed, true, scratch);
  const std::span<float> key = pool.Run(pass.weights.index_compressor.norm);
  Hadamard(key);
  std::byte* const tile = closed.item->sequence->KeyTile(pass.layer, closed.group);
  const size_t index = closed.group % kPageRows;
  if (pass.shape.round_caches) return StoreFp4Row(key, index, tile);
  PackRows(pass.shape.key_kind(), key, index, 1, key.size(), {tile, pass.shape.key_tile_bytes()});
  return true;
}

void Report(const AttentionPass& pass, std::span<const ClosedGroup> groups) {
  const CachedRowShape shape = pass.shape.cached_row();
  const std::span<float> row = pass.scratch.tiles.first(shape.width());
  for (const ClosedGroup& closed : groups) {
    const std::byte* kept = closed.item->sequence->CompressedRow(pass.layer, closed.group);
    LoadCachedRows(shape, kept, shape.bytes(), 1, row.data());
    const size_t last = (closed.group + 1) * pass.shape.ratio[pass.layer] - 1;
    pass.batch.observer->OnCompressed(closed.item->index, last, pass.layer, closed.group, row);
  }
}

}  // namespace

Status CompressGroups(const AttentionPass& pass) {
  const Dsv4Shape& shape = pass.shape;
  const std::span<const ClosedGroup> groups = pass.scratch.closed[shape.class_of[pass.layer]];
  if (groups.empty()) return {};
  const size_t workers = pass.batch.pool.size();
  const size_t entries = 2 * shape.ratio[pass.layer];
  const size_t width = std::max(shape.head_dim, shape.index_dim);
  ScratchArena& arena = pass.batch.scratch;
  const std::span<PooledRow> all_entries = arena.Allocate<PooledRow>(workers * entries);
  const std::span<float> all_rows = arena.Allocate<float>(workers * width);
  const std::span<float> all_angles = arena.Allocate<float>(workers * shape.rope);
  std::atomic<bool> finite{true};
  const size_t parts = shape.indexed(pass.layer) ? 2 : 1;
  Status done = pass.batch.pool.ParallelFor(groups.size() * parts, [&](size_t task, size_t worker) {
    const PoolScratch scratch{all_entries.subspan(worker * entries, entries),
                              all_rows.subspan(worker * width, width),
                              all_angles.subspan(worker * shape.rope, shape.rope)};
    const ClosedGroup& closed = groups[task / parts];
    const bool good =
        task % parts == 0 ? MakeRow(pass, closed, scratch) : MakeKey(pass, closed, scratch);
    if (!good) finite.store(false, std::memory_order_relaxed);
  });
  if (!done) return done;
  if (!finite.load()) {
    return Fail(ErrorCode::kNumeric,
                "non-finite compressed row, layer " + std::to_string(pass.layer),
                "the weights of the model or the state of the sequence are damaged");
  }
  if (pass.batch.observer != nullptr) Report(pass, groups);
  return {};
}

}  // namespace mk::dsv4
