#include "engine/k3/mla_attend.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/kernels/latent_attention.h"

namespace mk::k3 {
namespace {

// Tokens and heads whose queries share a walk over the cache.
constexpr size_t kTokenBlock = 16;
constexpr size_t kHeadBlock = 8;
constexpr size_t kMostQueries = kTokenBlock * kHeadBlock;

size_t CeilDiv(size_t a, size_t b) {
  return (a + b - 1) / b;
}

// A block of queries of one item over some segments of its cache. Results go to `out`, or, when
// other tasks have the other segments, to a slot of the partial results.
struct Task {
  const BatchItem* item;
  size_t first;  // token
  size_t tokens;
  size_t head;
  size_t heads;
  size_t segment;
  size_t segments;
  size_t slot;  // first of tokens * heads slots of partial results, or kNoSlot

  size_t queries() const { return tokens * heads; }
  // Positions that the last query sees.
  size_t positions() const { return item->position + first + tokens; }
};
constexpr size_t kNoSlot = ~size_t{0};

struct Attend {
  const K3Shape& shape;
  size_t index;  // of the layer
  const AttendArgs& args;
  size_t value_width;
  size_t query_width;
  float scale;
  std::span<AttentionQuery> partial;  // by slot
  std::span<float> scratch;           // [workers][kMostQueries][value_width]
  std::span<float> tile_scratch;      // [workers][tile_floats]
  size_t tile_floats;

  // Rows of `out` and of the queries of query i of a task: token by token, head by head.
  size_t Row(const Task& task, size_t i) const {
    const size_t token = task.item->first_row + task.first + i / task.heads;
    return token * shape.mla_heads + task.head + i % task.heads;
  }
  float* Out(const Task& task, size_t i) const { return args.out + Row(task, i) * value_width; }

  AttentionTile TileAt(const Task& task, size_t position) const;
  void WalkSegment(const Task& task, size_t segment, std::span<AttentionQuery> queries,
                   size_t worker) const;
  void Run(const Task& task, size_t worker) const;
  void Merge(const Task& first, size_t segments) const;
};

AttentionTile Attend::TileAt(const Task& task, size_t position) const {
  K3Sequence& sequence = *task.item->sequence;
  AttentionTile tile;
  if (sequence.byte_kv()) {
    tile.bytes = sequence.KvTile(index, position);
    tile.byte_shape = sequence.byte_shape();
    tile.query_bytes = args.query_bytes;
    tile.value_width = value_width;
    return tile;
  }
  const float* rows = sequence.KvRow(index, position);
  tile.key_stride = tile.value_stride = sequence.kv_row();
  tile.key_width = query_width;
  tile.value_width = value_width;
  if (args.expanded) {  // one head
    tile.keys = rows + task.head * shape.qk;
    tile.values = rows + shape.mla_heads * shape.qk + task.head * shape.value;
  } else {
    tile.keys = tile.values = rows;
  }
  return tile;
}

// Takes in all tiles of a segment. `queries` start without a past.
void Attend::WalkSegment(const Task& task, size_t segment, std::span<AttentionQuery> queries,
                         size_t worker) const {
  for (size_t i = 0; i < queries.size(); ++i) {
    queries[i].row = Row(task, i);
    std::fill_n(queries[i].acc, value_width, 0.0f);
    queries[i].query = args.queries + Row(task, i) * query_width;
  }
  const size_t begin = segment * kAttentionSegment;
  const size_t end = std::min(begin + kAttentionSegment, task.positions());
  const size_t first_position = task.item->position + task.first;  // of the first token
  for (size_t position = begin; position < end; position += kAttentionTile) {
    AttentionTile tile = TileAt(task, position);
    const size_t next = position + kAttentionTile;
    if (next < end) {
      const AttentionTile following = TileAt(task, next);
      tile.next_keys = following.keys;
      tile.next_bytes = following.bytes;
    }
    // Tokens before the tile see nothing of it.
    size_t skipped = 0;
    for (size_t i = 0; i < queries.size(); ++i) {
      const size_t seen = first_position + i / task.heads + 1;
      if (seen <= position) {
        skipped = i + 1;
      } else {
        queries[i].count = std::min(seen - position, kAttentionTile);
      }
    }
    AttendTile(tile, scale, queries.subspan(skipped),
               tile_scratch.subspan(worker * tile_floats, tile_floats));
  }
}

void Attend::Run(const Task& task, size_t worker) const {
  if (task.slot != kNoSlot) {
    WalkSegment(task, task.segment, partial.subspan(task.slot, task.queries()), worker);
    return;
  }
  AttentionQuery total[kMostQueries];
  const std::span<AttentionQuery> queries(total, task.queries());
  for (size_t i = 0; i < queries.size(); ++i) queries[i].acc = Out(task, i);
  WalkSegment(task, 0, queries, worker);
  for (size_t s = 1; s < task.segments; ++s) {
    AttentionQuery part[kMostQueries];
    const std::span<AttentionQuery> parts(part, task.queries());
    float* const acc = scratch.data() + worker * kMostQueries * value_width;
    for (size_t i = 0; i < parts.size(); ++i) parts[i].acc = acc + i * value_width;
    WalkSegment(task, s, parts, worker);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].count > 0) MergeAttention(parts[i], value_width, queries[i]);
    }
  }
  for (const AttentionQuery& query : queries) FinishAttention(query, value_width);
}

// Merges the partial results of a block of queries, whose first segment is `first`.
void Attend::Merge(const Task& first, size_t segments) const {
  for (size_t i = 0; i < first.queries(); ++i) {
    AttentionQuery total = partial[first.slot + i];
    float* const out = Out(first, i);
    std::copy_n(total.acc, value_width, out);
    total.acc = out;
    for (size_t s = 1; s < segments; ++s) {
      const AttentionQuery& part = partial[first.slot + s * first.queries() + i];
      if (part.count > 0) MergeAttention(part, value_width, total);
    }
    FinishAttention(total, value_width);
  }
}

// How the queries of a batch are cut into tasks.
class Plan {
 public:
  Plan(const K3Shape& shape, const Batch& batch, bool expanded) {
    // Few queries over a long cache: their segments become tasks of their own.
    size_t blocks = 0;
    ForBlocks(shape, batch, expanded, [&](const Task&) { ++blocks; });
    split_ = batch.pool.size() > 1 && blocks < 4 * batch.pool.size();
    size_t count = 0;
    ForBlocks(shape, batch, expanded, [&](const Task& block) {
      if (Splits(block)) {
        count += block.segments;
        slots_ += block.segments * block.queries();
        ++merges_count_;
      } else {
        ++count;
      }
    });
    tasks = batch.scratch.Allocate<Task>(count);
    merges = batch.scratch.Allocate<Task>(merges_count_);
    size_t task = 0, merge = 0, slot = 0;
    ForBlocks(shape, batch, expanded, [&](Task block) {
      if (!Splits(block)) {
        tasks[task++] = block;
        return;
      }
      block.slot = slot;
      merges[merge++] = block;
      for (size_t s = 0; s < block.segments; ++s) {
        block.segment = s;
        block.slot = slot;
        tasks[task++] = block;
        slot += block.queries();
      }
    });
  }

  size_t slots() const { return slots_; }

  std::span<Task> tasks;
  std::span<Task> merges;  // first segments of blocks that were split

 private:
  bool Splits(const Task& block) const { return split_ && block.segments > 1; }

  template <typename Body>
  static void ForBlocks(const K3Shape& shape, const Batch& batch, bool expanded, const Body& body) {
    // Expanded keys belong to one head.
    const size_t head_step = expanded ? 1 : kHeadBlock;
    for (const BatchItem& item : batch.items) {
      if (item.sequence->options().expanded_kv != expanded) continue;
      for (size_t first = 0; first < item.tokens; first += kTokenBlock) {
        const size_t tokens = std::min(kTokenBlock, item.tokens - first);
        const size_t segments = CeilDiv(item.position + first + tokens, kAttentionSegment);
        for (size_t head = 0; head < shape.mla_heads; head += head_step) {
          const size_t heads = std::min(head_step, shape.mla_heads - head);
          body(Task{&item, first, tokens, head, heads, 0, segments, kNoSlot});
        }
      }
    }
  }

  bool split_ = false;
  size_t slots_ = 0;
  size_t merges_count_ = 0;
};

}  // namespace

Status AttendCache(const K3Shape& shape, size_t index, const Batch& batch, const AttendArgs& args) {
  static_assert(kAttentionTile == kPageTokens && kAttentionSegment % kAttentionTile == 0);
  const Plan plan(shape, batch, args.expanded);
  const size_t value_width = args.expanded ? shape.value : shape.kv_rank;
  const std::span<AttentionQuery> partial = batch.scratch.Allocate<AttentionQuery>(plan.slots());
  const std::span<float> partial_acc = batch.scratch.Allocate<float>(plan.slots() * value_width);
  for (size_t i = 0; i < partial.size(); ++i) {
    partial[i] = {};
    partial[i].acc = partial_acc.data() + i * value_width;
  }
  const size_t workers = batch.pool.size();
  const size_t tile_floats = AttentionScratch({shape.kv_rank, shape.rope});
  const Attend attend{shape,
                      index,
                      args,
                      value_width,
                      args.expanded ? shape.qk : shape.latent_row(),
                      1.0f / std::sqrt(static_cast<float>(shape.qk)),
                      partial,
                      batch.scratch.Allocate<float>(workers * kMostQueries * value_width),
                      batch.scratch.Allocate<float>(workers * tile_floats),
                      tile_floats};
  // Later blocks see more positions: longest first.
  const size_t count = plan.tasks.size();
  Status done = batch.pool.ParallelFor(
      count, [&](size_t i, size_t worker) { attend.Run(plan.tasks[count - 1 - i], worker); });
  if (!done || plan.merges.empty()) return done;
  return batch.pool.ParallelFor(plan.merges.size(), [&](size_t i, size_t) {
    attend.Merge(plan.merges[i], plan.merges[i].segments);
  });
}

}  // namespace mk::k3
