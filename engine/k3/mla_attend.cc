#include "engine/k3/mla_attend.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/kernels/latent_attention.h"

namespace mk::k3 {
namespace {

// Queries of one head that share a walk over the cache.
constexpr size_t kQueryBlock = 16;

size_t Blocks(const BatchItem& item) {
  return (item.tokens + kQueryBlock - 1) / kQueryBlock;
}

// One block of queries of one head of one item.
struct Task {
  const BatchItem* item;
  size_t first;  // token
  size_t count;
  size_t head;
};

AttentionTile TileAt(const K3Shape& shape, size_t index, const Task& task, size_t position,
                     bool expanded) {
  const K3Sequence& sequence = *task.item->sequence;
  const float* rows = task.item->sequence->KvRow(index, position);
  AttentionTile tile;
  tile.key_stride = tile.value_stride = sequence.kv_row();
  if (expanded) {
    tile.keys = rows + task.head * shape.qk;
    tile.key_width = shape.qk;
    tile.values = rows + shape.mla_heads * shape.qk + task.head * shape.value;
    tile.value_width = shape.value;
  } else {
    tile.keys = tile.values = rows;
    tile.key_width = shape.latent_row();
    tile.value_width = shape.kv_rank;
  }
  return tile;
}

void RunTask(const K3Shape& shape, size_t index, const Task& task, const AttendArgs& args) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.qk));
  const size_t value_width = args.expanded ? shape.value : shape.kv_rank;
  const size_t query_width = args.expanded ? shape.qk : shape.latent_row();
  const auto slot = [&](size_t i) {
    return (task.item->first_row + task.first + i) * shape.mla_heads + task.head;
  };
  AttentionState states[kQueryBlock];
  for (size_t i = 0; i < task.count; ++i) {
    std::fill_n(args.out + slot(i) * value_width, value_width, 0.0f);
  }
  const size_t first_position = task.item->position + task.first;
  const size_t end = first_position + task.count;  // positions that the last query sees
  for (size_t position = 0; position < end; position += kAttentionTile) {
    AttentionTile tile = TileAt(shape, index, task, position, args.expanded);
    for (size_t i = 0; i < task.count; ++i) {
      const size_t seen = first_position + i + 1;
      if (seen <= position) continue;
      tile.count = std::min(seen - position, kAttentionTile);
      AttendTile(tile, args.queries + slot(i) * query_width, scale, states[i],
                 args.out + slot(i) * value_width);
    }
  }
  for (size_t i = 0; i < task.count; ++i) {
    FinishAttention(states[i], args.out + slot(i) * value_width, value_width);
  }
}

}  // namespace

Status AttendCache(const K3Shape& shape, size_t index, const Batch& batch, const AttendArgs& args) {
  static_assert(kAttentionTile == kPageTokens);
  size_t count = 0;
  for (const BatchItem& item : batch.items) {
    if (item.sequence->options().expanded_kv == args.expanded) {
      count += Blocks(item) * shape.mla_heads;
    }
  }
  const std::span<Task> tasks = batch.scratch.Allocate<Task>(count);
  size_t n = 0;
  for (const BatchItem& item : batch.items) {
    if (item.sequence->options().expanded_kv != args.expanded) continue;
    for (size_t block = 0; block < Blocks(item); ++block) {
      const size_t first = block * kQueryBlock;
      for (size_t head = 0; head < shape.mla_heads; ++head) {
        tasks[n++] = {&item, first, std::min(kQueryBlock, item.tokens - first), head};
      }
    }
  }
  // Later blocks see more positions: longest first.
  return batch.pool.ParallelFor(
      count, [&](size_t i, size_t) { RunTask(shape, index, tasks[count - 1 - i], args); });
}

}  // namespace mk::k3
