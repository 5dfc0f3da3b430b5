#include "engine/dsv4/indexer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <string>

#include "engine/kernels/index_score.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

// Floats of scores held at a time; more tokens are scored in turns.
constexpr size_t kScoreFloats = size_t{4} << 20;
// Rows of queries that share a pass over a tile of keys, and tiles of a task.
constexpr size_t kQueryRows = 64;
constexpr size_t kTilesPerTask = 4;

size_t RowsSeen(const AttentionPass& pass, size_t row) {
  return (pass.scratch.position(row) + 1) / kIndexedRatio;
}

// Consecutive rows of one item that are scored together.
struct ScoreBlock {
  size_t first = 0;  // row of the batch
  size_t rows = 0;
  size_t seen = 0;  // compressed rows that the last one sees
};

// Scores of some rows of the batch, all of them with more compressed rows than they may pick.
class Scores {
 public:
  // `limit`: most compressed rows that any row sees.
  Scores(const AttentionPass& pass, size_t limit)
      : pass_(pass),
        limit_(limit),
        together_(std::max<size_t>(1, kQueryRows / pass.shape.index_heads)),
        turn_(std::clamp<size_t>(kScoreFloats / limit, 1, pass.batch.rows)) {
    ScratchArena& arena = pass.batch.scratch;
    const size_t workers = pass.batch.pool.size();
    values_ = arena.Allocate<float>(turn_ * limit);
    order_ = arena.Allocate<int32_t>(workers * limit);
    product_floats_ = together_ * pass.shape.index_heads * kPageRows;
    products_ = arena.Allocate<float>(workers * product_floats_);
    blocks_ = arena.Allocate<ScoreBlock>(turn_);
  }

  // Scores these rows, at most turn() of them, and picks. False when a score is not finite.
  Result<bool> Run(std::span<const size_t> rows);
  size_t turn() const { return turn_; }

 private:
  std::span<const ScoreBlock> CutIntoBlocks(std::span<const size_t> rows);
  void ScoreTile(const ScoreBlock& block, size_t slot, size_t tile, float* products) const;

  const AttentionPass& pass_;
  const size_t limit_;
  const size_t together_;
  const size_t turn_;
  std::span<float> values_;   // [turn][limit]
  std::span<int32_t> order_;  // [workers][limit]
  std::span<float> products_;
  size_t product_floats_;
  std::span<ScoreBlock> blocks_;
};

// Neighbours of one item, up to together_ of them.
std::span<const ScoreBlock> Scores::CutIntoBlocks(std::span<const size_t> rows) {
  size_t count = 0;
  for (const size_t row : rows) {
    if (count > 0) {
      ScoreBlock& last = blocks_[count - 1];
      if (last.rows < together_ && last.first + last.rows == row &&
          pass_.scratch.item_of_row[row] == pass_.scratch.item_of_row[last.first]) {
        ++last.rows;
        last.seen = RowsSeen(pass_, row);
        continue;
      }
    }
    blocks_[count++] = {row, 1, RowsSeen(pass_, row)};
  }
  return blocks_.first(count);
}

// Scores of a block's rows with the 64 keys of a tile. `slot` is that of its first row.
void Scores::ScoreTile(const ScoreBlock& block, size_t slot, size_t tile, float* products) const {
  const Dsv4Shape& shape = pass_.shape;
  const size_t first_key = tile * kPageRows;
  const size_t keys = std::min(kPageRows, block.seen - first_key);
  const size_t query_row = block.first * shape.index_heads;
  const size_t query_width = AttentionScratch::QueryWidth(shape, pass_.layer);
  Dsv4Sequence& sequence = *pass_.scratch.item_of_row[block.first]->sequence;
  MatMulJob job{{shape.key_kind(), sequence.KeyTile(pass_.layer, first_key), keys, shape.index_dim},
                nullptr,
                0,
                products,
                kPageRows,
                block.rows * shape.index_heads,
                {}};
  if (shape.round_caches) {
    job.q8.high = pass_.scratch.index_query.From(query_row);
    MatMul(job);
  } else {
    // The heads of a row follow each other, rows are query_width apart.
    for (size_t r = 0; r < block.rows; ++r) {
      MatMulJob one = job;
      one.x = pass_.scratch.query + (block.first + r) * query_width + shape.heads_width();
      one.ldx = shape.index_dim;
      one.y = products + r * shape.index_heads * kPageRows;
      one.n = shape.index_heads;
      MatMul(one);
    }
  }
  for (size_t r = 0; r < block.rows; ++r) {
    const float* weights = pass_.Input(block.first + r) + pass_.parts.index_weights;
    IndexScores(products + r * shape.index_heads * kPageRows, kPageRows,
                {weights, shape.index_heads},
                values_.subspan((slot + r) * limit_ + first_key, keys));
  }
}

Result<bool> Scores::Run(std::span<const size_t> rows) {
  const std::span<const ScoreBlock> blocks = CutIntoBlocks(rows);
  const std::span<size_t> first_task = pass_.batch.scratch.Allocate<size_t>(blocks.size() + 1);
  first_task[0] = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const size_t tiles = (blocks[b].seen + kPageRows - 1) / kPageRows;
    first_task[b + 1] = first_task[b] + (tiles + kTilesPerTask - 1) / kTilesPerTask;
  }
  Status scored = pass_.batch.pool.ParallelFor(first_task.back(), [&](size_t task, size_t worker) {
    const size_t b = static_cast<size_t>(
        std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1);
    const ScoreBlock& block = blocks[b];
    size_t slot = 0;
    for (size_t before = 0; before < b; ++before) slot += blocks[before].rows;
    const size_t tile = (task - first_task[b]) * kTilesPerTask;
    const size_t end = std::min(tile + kTilesPerTask, (block.seen + kPageRows - 1) / kPageRows);
    for (size_t t = tile; t < end; ++t) {
      ScoreTile(block, slot, t, products_.data() + worker * product_floats_);
    }
  });
  if (!scored) return Fail(scored.error());
  std::atomic<bool> finite{true};
  const AttentionScratch& s = pass_.scratch;
  Status picked = pass_.batch.pool.ParallelFor(rows.size(), [&](size_t slot, size_t worker) {
    const size_t row = rows[slot];
    const std::span<const float> scores =
        std::span<const float>(values_).subspan(slot * limit_, RowsSeen(pass_, row));
    if (!std::isfinite(Sum(scores))) {
      finite.store(false, std::memory_order_relaxed);
      return;
    }
    const std::span<int32_t> picks = s.picks.subspan(row * s.most_picks, pass_.shape.index_topk);
    HighestScores(scores, order_.subspan(worker * limit_, scores.size()), picks);
    s.pick_count[row] = static_cast<uint32_t>(picks.size());
    if (s.pick_scores.empty()) return;
    for (size_t i = 0; i < picks.size(); ++i) {
      s.pick_scores[row * s.most_picks + i] = scores[static_cast<size_t>(picks[i])];
    }
  });
  if (!picked) return Fail(picked.error());
  return finite.load();
}

void Report(const AttentionPass& pass) {
  const AttentionScratch& s = pass.scratch;
  for (size_t row = 0; row < pass.batch.rows; ++row) {
    const BatchItem& item = *s.item_of_row[row];
    const size_t count = s.pick_count[row];
    const bool scored = RowsSeen(pass, row) > pass.shape.index_topk;
    pass.batch.observer->OnIndexer(item.index, s.position(row), pass.layer,
                                   s.picks.subspan(row * s.most_picks, count),
                                   s.pick_scores.subspan(row * s.most_picks, scored ? count : 0));
  }
}

}  // namespace

void HighestScores(std::span<const float> scores, std::span<int32_t> order,
                   std::span<int32_t> picks) {
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)];
    const float y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(picks.size());
  if (end != order.end()) std::nth_element(order.begin(), end, order.end(), better);
  std::copy(order.begin(), end, picks.begin());
  std::sort(picks.begin(), picks.end());
}

Status PickRows(const AttentionPass& pass) {
  const AttentionScratch& s = pass.scratch;
  const std::span<size_t> to_score = pass.batch.scratch.Allocate<size_t>(pass.batch.rows);
  size_t count = 0;
  size_t limit = 0;
  for (size_t row = 0; row < pass.batch.rows; ++row) {
    const size_t seen = RowsSeen(pass, row);
    if (seen > pass.shape.index_topk) {
      to_score[count++] = row;
      limit = std::max(limit, seen);
      continue;
    }
    const std::span<int32_t> picks = s.picks.subspan(row * s.most_picks, seen);
    std::iota(picks.begin(), picks.end(), 0);
    s.pick_count[row] = static_cast<uint32_t>(seen);
  }
  if (count > 0) {
    Scores scores(pass, limit);
    for (size_t first = 0; first < count; first += scores.turn()) {
      const size_t n = std::min(scores.turn(), count - first);
      const Result<bool> finite = scores.Run(to_score.subspan(first, n));
      if (!finite) return Fail(finite.error());
      if (*finite) continue;
      return Fail(ErrorCode::kNumeric,
                  "non-finite index score, layer " + std::to_string(pass.layer),
                  "the weights of the model or the state of the sequence are damaged");
    }
  }
  if (pass.batch.observer != nullptr) Report(pass);
  return {};
}

}  // namespace mk::dsv4
