#include "engine/dsv4/attend.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/kernels/latent_attention.h"

namespace mk::dsv4 {
namespace {

// Tokens and heads whose queries share decoded rows.
constexpr size_t kTokenBlock = 8;
constexpr size_t kMostHeads = 64;
// Fewer heads than this do not pay for decoding the rows once more.
constexpr size_t kLeastHeads = 8;

size_t CeilDiv(size_t a, size_t b) {
  return (a + b - 1) / b;
}

struct Task {
  size_t item = 0;
  size_t first = 0;  // token
  size_t tokens = 0;
  size_t head = 0;
  size_t heads = 0;
};

class Walk {
 public:
  Walk(const AttentionPass& pass, const Task& task, std::span<float> tile)
      : pass_(pass),
        task_(task),
        item_(pass.batch.items[task.item]),
        window_(pass.scratch.windows[task.item]),
        scale_(1.0f / std::sqrt(static_cast<float>(pass.shape.head_dim))),
        tile_(tile) {}

  void Run() {
    for (size_t t = 0; t < task_.tokens; ++t) {
      Start(t);
      WalkWindow(t);
      if (pass_.shape.indexed(pass_.layer)) WalkPicks(t);
    }
    if (pass_.shape.ratio[pass_.layer] > 0 && !pass_.shape.indexed(pass_.layer)) WalkAll();
    for (size_t i = 0; i < task_.tokens * task_.heads; ++i) {
      FinishAttention(queries_[i], pass_.shape.head_dim);
    }
  }

 private:
  size_t Position(size_t t) const { return item_.position + task_.first + t; }
  size_t Row(size_t t) const { return item_.first_row + task_.first + t; }
  std::span<AttentionQuery> Queries(size_t t) { return {queries_ + t * task_.heads, task_.heads}; }

  // The sink is a score without a row: it is there before the first tile.
  void Start(size_t t) {
    const size_t d = pass_.shape.head_dim;
    const size_t width = AttentionScratch::QueryWidth(pass_.shape, pass_.layer);
    const float* query = pass_.scratch.query + Row(t) * width + task_.head * d;
    float* out = pass_.scratch.heads.row(Row(t)) + task_.head * d;
    std::fill_n(out, task_.heads * d, 0.0f);
    for (size_t h = 0; h < task_.heads; ++h) {
      AttentionQuery& q = Queries(t)[h];
      q = {};
      q.query = query + h * d;
      q.acc = out + h * d;
      q.max = pass_.weights.sink[task_.head + h];
      q.sum = 1.0f;
    }
  }

  void Take(const float* rows, size_t count, std::span<AttentionQuery> queries) {
    const size_t d = pass_.shape.head_dim;
    for (AttentionQuery& q : queries) q.count = count;
    AttendTile(Tile(rows, d), scale_, queries);
  }
  static AttentionTile Tile(const float* rows, size_t d) {
    AttentionTile tile;
    tile.keys = tile.values = rows;
    tile.key_stride = tile.value_stride = d;
    tile.key_width = tile.value_width = d;
    return tile;
  }

  void WalkWindow(size_t t) {
    const size_t end = Position(t) + 1;
    for (size_t p = end - std::min(end, pass_.shape.window); p < end; p += kAttentionTile) {
      Take(window_.rows + (p - window_.first) * pass_.shape.head_dim,
           std::min(kAttentionTile, end - p), Queries(t));
    }
  }

  void WalkPicks(size_t t) {
    const AttentionScratch& s = pass_.scratch;
    const CachedRowShape shape = pass_.shape.cached_row();
    const std::span<const int32_t> picks =
        s.picks.subspan(Row(t) * s.most_picks, s.pick_count[Row(t)]);
    for (size_t first = 0; first < picks.size(); first += kAttentionTile) {
      const size_t count = std::min(kAttentionTile, picks.size() - first);
      for (size_t i = 0; i < count; ++i) {
        const auto row = static_cast<size_t>(picks[first + i]);
        LoadCachedRows(shape, item_.sequence->CompressedRow(pass_.layer, row), shape.bytes(), 1,
                       tile_.data() + i * shape.width());
      }
      Take(tile_.data(), count, Queries(t));
    }
  }

  // All compressed rows, each tile for all tokens that see some of it.
  void WalkAll() {
    const CachedRowShape shape = pass_.shape.cached_row();
    const size_t ratio = pass_.shape.ratio[pass_.layer];
    const auto seen = [&](size_t t) { return (Position(t) + 1) / ratio; };
    const size_t end = seen(task_.tokens - 1);
    for (size_t first = 0; first < end; first += kAttentionTile) {
      const size_t count = std::min(kAttentionTile, end - first);
      LoadCachedRows(shape, item_.sequence->CompressedRow(pass_.layer, first), shape.bytes(), count,
                     tile_.data());
      for (size_t t = 0; t < task_.tokens; ++t) {
        if (seen(t) <= first) continue;
        Take(tile_.data(), std::min(kAttentionTile, seen(t) - first), Queries(t));
      }
    }
  }

  const AttentionPass& pass_;
  const Task& task_;
  const BatchItem& item_;
  const ItemWindow& window_;
  const float scale_;
  const std::span<float> tile_;  // [64][D]
  AttentionQuery queries_[kTokenBlock * kMostHeads];
};

// Blocks of tokens and of heads; heads are split up while there are too few tasks.
std::span<const Task> Plan(const Dsv4Shape& shape, const Batch& batch) {
  size_t token_blocks = 0;
  for (const BatchItem& item : batch.items) token_blocks += CeilDiv(item.tokens, kTokenBlock);
  size_t heads = std::min(shape.heads, kMostHeads);
  while (heads >= 2 * kLeastHeads &&
         token_blocks * CeilDiv(shape.heads, heads) < 2 * batch.pool.size()) {
    heads = CeilDiv(heads, 2);
  }
  const std::span<Task> tasks =
      batch.scratch.Allocate<Task>(token_blocks * CeilDiv(shape.heads, heads));
  size_t n = 0;
  for (size_t i = 0; i < batch.items.size(); ++i) {
    const size_t all = batch.items[i].tokens;
    for (size_t first = 0; first < all; first += kTokenBlock) {
      for (size_t head = 0; head < shape.heads; head += heads) {
        tasks[n++] = {i, first, std::min(kTokenBlock, all - first), head,
                      std::min(heads, shape.heads - head)};
      }
    }
  }
  return tasks;
}

}  // namespace

Status Attend(const AttentionPass& pass) {
  static_assert(kAttentionTile == kPageRows);
  const std::span<const Task> tasks = Plan(pass.shape, pass.batch);
  const size_t tile_floats = kPageRows * pass.shape.head_dim;
  return pass.batch.pool.ParallelFor(tasks.size(), [&](size_t i, size_t worker) {
    Walk(pass, tasks[i], pass.scratch.tiles.subspan(worker * tile_floats, tile_floats)).Run();
  });
}

}  // namespace mk::dsv4
