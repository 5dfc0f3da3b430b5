#include "engine/dsv4/attention_layer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "engine/dsv4/attend.h"
#include "engine/dsv4/compressor.h"
#include "engine/dsv4/indexer.h"
#include "engine/kernels/fp4_rows.h"
#include "engine/kernels/hadamard.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/rotary.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

Status NonFinite(size_t layer, const char* what) {
  return Fail(ErrorCode::kNumeric,
              std::string("non-finite ") + what + ", layer " + std::to_string(layer),
              "the weights of the model or the state of the sequence are damaged");
}

// The rows before the batch that its tokens see, from the rings.
Status LoadWindows(const AttentionPass& pass) {
  constexpr size_t kRowsPerTask = 32;
  const Dsv4Shape& shape = pass.shape;
  const CachedRowShape row = shape.cached_row();
  const size_t slots = shape.window_slots();
  const size_t tasks_per_item = (shape.window + kRowsPerTask - 1) / kRowsPerTask;
  const size_t items = pass.batch.items.size();
  return pass.batch.pool.ParallelFor(items * tasks_per_item, [&](size_t task, size_t) {
    const BatchItem& item = pass.batch.items[task / tasks_per_item];
    const ItemWindow& window = pass.scratch.windows[task / tasks_per_item];
    const std::byte* ring = item.sequence->WindowSlots(pass.layer);
    size_t position = window.first + task % tasks_per_item * kRowsPerTask;
    const size_t end = std::min(position + kRowsPerTask, item.position);
    while (position < end) {
      const size_t slot = position % slots;
      const size_t run = std::min(end - position, slots - slot);
      LoadCachedRows(row, ring + slot * row.bytes(), row.bytes(), run,
                     window.rows + (position - window.first) * shape.head_dim);
      position += run;
    }
  });
}

float* WindowRow(const AttentionPass& pass, size_t row) {
  const BatchItem& item = *pass.scratch.item_of_row[row];
  const ItemWindow& window =
      pass.scratch.windows[static_cast<size_t>(&item - pass.batch.items.data())];
  return window.rows + (pass.scratch.position(row) - window.first) * pass.shape.head_dim;
}

// Adds the bias of a token's slot in its group to its scores.
void BiasScores(std::span<const float> slot_bias, size_t ratio, size_t position, float* scores) {
  const size_t width = slot_bias.size() / ratio;
  const std::span<float> row(scores, width);
  Add(row, slot_bias.subspan(position % ratio * width, width), row);
}

// Query latent, the token's own row, and what it gives to the compressors. False when the row is
// not finite.
bool PrepareRow(const AttentionPass& pass, size_t row) {
  const Dsv4Shape& shape = pass.shape;
  const AttentionWeights& weights = pass.weights;
  const size_t position = pass.scratch.position(row);
  float* const in = pass.Input(row);
  RmsNorm({in, shape.query_rank}, weights.query_norm, shape.epsilon,
          {pass.scratch.latent.row(row), shape.query_rank});
  const std::span<float> own(WindowRow(pass, row), shape.head_dim);
  RmsNorm({in + pass.parts.key_value, shape.head_dim}, weights.key_norm, shape.epsilon, own);
  Rotate(pass.scratch.rotations.OfRow(pass.layer, row), own.last(shape.rope));
  const CachedRowShape kept = shape.cached_row();
  const bool finite = StoreCachedRow(kept, own, pass.scratch.kept_rows + row * kept.bytes());
  const size_t ratio = shape.ratio[pass.layer];
  if (ratio == 0) return finite;
  BiasScores(weights.compressor.slot_bias, ratio, position, in + pass.parts.scores);
  if (!shape.indexed(pass.layer)) return finite;
  BiasScores(weights.index_compressor.slot_bias, ratio, position, in + pass.parts.index_scores);
  const double product = static_cast<double>(shape.index_dim * shape.index_heads);
  const std::span<float> shares(in + pass.parts.index_weights, shape.index_heads);
  Scale(static_cast<float>(1.0 / std::sqrt(product)), shares, shares);
  return finite;
}

// Unit length and rotation of the heads; rotation, Hadamard and FP4 of the indexer's. False when a
// query of the indexer is not finite.
bool PrepareQuery(const AttentionPass& pass, size_t row) {
  const Dsv4Shape& shape = pass.shape;
  const size_t width = AttentionScratch::QueryWidth(shape, pass.layer);
  const std::span<const float> angles = pass.scratch.rotations.OfRow(pass.layer, row);
  float* head = pass.scratch.query + row * width;
  for (size_t h = 0; h < shape.heads; ++h, head += shape.head_dim) {
    const std::span<float> q(head, shape.head_dim);
    const float mean = SumSquares(q) / static_cast<float>(shape.head_dim);
    Scale(1.0f / std::sqrt(mean + shape.epsilon), q, q);
    Rotate(angles, q.last(shape.rope));
  }
  if (!shape.indexed(pass.layer)) return true;
  bool finite = true;
  for (size_t h = 0; h < shape.index_heads; ++h, head += shape.index_dim) {
    const std::span<float> q(head, shape.index_dim);
    Rotate(angles, q.last(shape.rope));
    Hadamard(q);
    if (!shape.round_caches) continue;
    finite &= RoundToFp4(q, pass.scratch.index_query.From(row * shape.index_heads + h));
  }
  return finite;
}

template <typename Prepare>
Status PrepareRows(const AttentionPass& pass, const char* what, const Activations* sealed,
                   const Prepare& prepare) {
  std::atomic<bool> finite{true};
  Status done = ForRows(pass.batch, pass.batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      if (!prepare(pass, row)) finite.store(false, std::memory_order_relaxed);
    }
    if (sealed != nullptr) sealed->Seal(begin, end);
  });
  if (!done) return done;
  return finite.load() ? Status() : NonFinite(pass.layer, what);
}

Status Project(const AttentionPass& pass, const Activations& x) {
  const AttentionScratch& s = pass.scratch;
  const size_t rows = pass.batch.rows;
  const MatMulJob input = x.TimesNarrow(pass.weights.input, s.input, pass.parts.width, rows);
  if (Status done = ParallelMatMul(pass.batch.pool, {&input, 1}); !done) return done;
  if (Status done = PrepareRows(pass, "key", &s.latent, PrepareRow); !done) return done;
  const size_t width = AttentionScratch::QueryWidth(pass.shape, pass.layer);
  const MatMulJob query = s.latent.Times(pass.weights.query, s.query, width, rows);
  if (Status done = ParallelMatMul(pass.batch.pool, {&query, 1}); !done) return done;
  return PrepareRows(pass, "index query", nullptr, PrepareQuery);
}

// Takes what the next tokens will need into the rings, or keeps it apart for a draft.
Status StoreRows(const AttentionPass& pass) {
  const Dsv4Shape& shape = pass.shape;
  const size_t row_bytes = shape.cached_row().bytes();
  const bool compressed = shape.ratio[pass.layer] > 0;
  return ForRows(pass.batch, pass.batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const BatchItem& item = *pass.scratch.item_of_row[row];
      // This one included; a draft keeps all.
      const size_t left = item.draft ? 0 : item.first_row + item.tokens - row;
      const size_t position = pass.scratch.position(row);
      if (left <= shape.window_slots()) {
        std::memcpy(item.sequence->WindowRow(pass.layer, position),
                    pass.scratch.kept_rows + row * row_bytes, row_bytes);
      }
      if (!compressed || left > shape.compressor_slots(pass.layer)) continue;
      const float* in = pass.Input(row);
      std::copy_n(in + pass.parts.values, 2 * shape.compressor_width(pass.layer),
                  item.sequence->CompressorHistory(pass.layer, position));
      if (!shape.indexed(pass.layer)) continue;
      std::copy_n(in + pass.parts.index_values, 4 * shape.index_dim,
                  item.sequence->IndexHistory(pass.layer, position));
    }
  });
}

// From the heads' mixes of rows to the output of the layer.
Status Output(const AttentionPass& pass, float* y) {
  const Dsv4Shape& shape = pass.shape;
  const AttentionScratch& s = pass.scratch;
  const Batch& batch = pass.batch;
  const size_t width = shape.group_width();
  Status turned = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<const float> angles = s.rotations.OfRow(pass.layer, row);
      for (size_t h = 0; h < shape.heads; ++h) {
        const std::span<float> o(s.heads.row(row) + h * shape.head_dim, shape.head_dim);
        RotateBack(angles, o.last(shape.rope));
      }
    }
    if (s.heads.q8.high.values == nullptr) return;
    // Every group has bytes of its own, so that it can be read alone.
    Q8Rows bytes = s.heads.q8.high;
    bytes.groups /= shape.groups;
    bytes.stride = bytes.groups;
    QuantizeRows(s.heads.values, width, width, begin * shape.groups, end * shape.groups, bytes);
  });
  if (!turned) return turned;
  const std::span<MatMulJob> jobs = batch.scratch.Allocate<MatMulJob>(shape.groups);
  for (size_t g = 0; g < shape.groups; ++g) {
    jobs[g] = {pass.weights.group[g],
               s.heads.values + g * width,
               s.heads.ld,
               s.group_out.values + g * shape.output_rank,
               s.group_out.ld,
               batch.rows,
               {}};
    if (s.heads.q8.high.values == nullptr) continue;
    const size_t groups = Q8Groups(width);
    jobs[g].q8.high = s.heads.q8.high.Columns(g * groups, groups);
  }
  if (Status done = ParallelMatMul(batch.pool, jobs); !done) return done;
  Status sealed =
      ForRows(batch, batch.rows, [&](size_t begin, size_t end) { s.group_out.Seal(begin, end); });
  if (!sealed) return sealed;
  const MatMulJob output = s.group_out.Times(pass.weights.output, y, shape.hidden, batch.rows);
  return ParallelMatMul(batch.pool, {&output, 1});
}

std::span<const BatchItem*> ItemsOfRows(const Batch& batch) {
  const std::span<const BatchItem*> of_row = batch.scratch.Allocate<const BatchItem*>(batch.rows);
  for (const BatchItem& item : batch.items) {
    std::fill_n(of_row.begin() + static_cast<std::ptrdiff_t>(item.first_row), item.tokens, &item);
  }
  return of_row;
}

std::span<std::span<const ClosedGroup>> ClosedGroups(const Dsv4Shape& shape, const Batch& batch) {
  const auto closed = batch.scratch.Allocate<std::span<const ClosedGroup>>(shape.classes.size());
  for (size_t c = 0; c < closed.size(); ++c) {
    const size_t ratio = shape.classes[c].ratio;
    const auto end = [&](const BatchItem& item) { return (item.position + item.tokens) / ratio; };
    size_t count = 0;
    for (const BatchItem& item : batch.items) count += end(item) - item.position / ratio;
    const std::span<ClosedGroup> groups = batch.scratch.Allocate<ClosedGroup>(count);
    size_t i = 0;
    for (const BatchItem& item : batch.items) {
      for (size_t g = item.position / ratio; g < end(item); ++g) groups[i++] = {&item, g};
    }
    closed[c] = groups;
  }
  return closed;
}

std::span<ItemWindow> Windows(const Dsv4Shape& shape, const Batch& batch) {
  const std::span<ItemWindow> windows = batch.scratch.Allocate<ItemWindow>(batch.items.size());
  for (size_t i = 0; i < windows.size(); ++i) {
    const BatchItem& item = batch.items[i];
    const size_t past = std::min(item.position, shape.window - 1);
    const size_t floats = (past + item.tokens) * shape.head_dim;
    windows[i] = {batch.scratch.Allocate<float>(floats).data(), item.position - past};
  }
  return windows;
}

// Most rows that an indexer may pick for a token of the batch.
size_t MostPicks(const Dsv4Shape& shape, const Batch& batch) {
  size_t rows = 0;
  for (const BatchItem& item : batch.items) {
    rows = std::max(rows, (item.position + item.tokens) / kIndexedRatio);
  }
  return std::min(rows, shape.index_topk);
}

}  // namespace

AttentionScratch::AttentionScratch(const Dsv4Shape& shape, const Batch& batch)
    : rotations(shape, batch),
      item_of_row(ItemsOfRows(batch)),
      closed(ClosedGroups(shape, batch)),
      windows(Windows(shape, batch)) {
  const auto floats = [&](size_t width) {
    return batch.scratch.Allocate<float>(batch.rows * width).data();
  };
  size_t input_width = 0;
  size_t query_width = 0;
  bool indexed = false;
  for (size_t l = 0; l < shape.layers; ++l) {
    input_width = std::max(input_width, shape.Inputs(l).width);
    query_width = std::max(query_width, QueryWidth(shape, l));
    indexed |= shape.indexed(l);
  }
  input = floats(input_width);
  latent = Activations::New(batch, shape.query_rank);
  query = floats(query_width);
  if (indexed && shape.round_caches) {
    index_query =
        NewQ8Rows(batch.scratch, batch.rows * shape.index_heads, Q8Groups(shape.index_dim));
  }
  const size_t row_bytes = shape.cached_row().bytes();
  kept_rows = batch.scratch.Allocate<std::byte>(batch.rows * row_bytes).data();
  heads = {floats(shape.heads_width()), shape.heads_width(), shape.heads_width(), {}};
  if (batch.precision == Precision::kQ8) {
    heads.q8.high =
        NewQ8Rows(batch.scratch, batch.rows, shape.groups * Q8Groups(shape.group_width()));
  }
  group_out = Activations::NewWide(batch, shape.groups * shape.output_rank);
  most_picks = indexed ? MostPicks(shape, batch) : 0;
  picks = batch.scratch.Allocate<int32_t>(batch.rows * most_picks);
  pick_count = batch.scratch.Allocate<uint32_t>(batch.rows);
  if (batch.observer != nullptr) {
    pick_scores = batch.scratch.Allocate<float>(batch.rows * most_picks);
  }
  tiles = batch.scratch.Allocate<float>(batch.pool.size() * kPageRows * shape.head_dim);
}

Status AttentionForward(const Dsv4Shape& shape, const AttentionWeights& weights, size_t layer,
                        const Batch& batch, const AttentionScratch& scratch, const Activations& x,
                        float* y) {
  const AttentionPass pass{shape, weights, layer, batch, scratch, shape.Inputs(layer)};
  if (Status done = LoadWindows(pass); !done) return done;
  if (Status done = Project(pass, x); !done) return done;
  if (shape.ratio[layer] > 0) {
    if (Status done = CompressGroups(pass); !done) return done;
  }
  if (shape.indexed(layer)) {
    if (Status done = PickRows(pass); !done) return done;
  }
  if (Status done = Attend(pass); !done) return done;
  if (Status done = StoreRows(pass); !done) return done;
  return Output(pass, y);
}

}  // namespace mk::dsv4
