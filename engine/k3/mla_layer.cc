#include "engine/k3/mla_layer.h"

#include <algorithm>

#include "engine/k3/mla_attend.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

// One product per head: head h reads `x_width` floats at x + h * x_step of every row and writes at
// y + h * y_step.
struct HeadProduct {
  const std::vector<PackedMatrix>& weights;
  const float* x;
  size_t x_step;
  size_t ldx;
  float* y;
  size_t y_step;
  size_t ldy;
};

Status MultiplyHeads(const Batch& batch, std::span<const HeadProduct> products) {
  size_t count = 0;
  for (const HeadProduct& product : products) count += product.weights.size();
  const std::span<MatMulJob> jobs = batch.scratch.Allocate<MatMulJob>(count);
  size_t n = 0;
  for (const HeadProduct& p : products) {
    for (size_t h = 0; h < p.weights.size(); ++h) {
      jobs[n++] = {p.weights[h], p.x + h * p.x_step, p.ldx, p.y + h * p.y_step, p.ldy, batch.rows};
    }
  }
  return ParallelMatMul(batch.pool, jobs);
}

// Queries, latents and shared keys of all rows: products and norms.
Status Project(const K3Shape& shape, const MlaWeights& weights, const Batch& batch,
               const MlaScratch& s, const Activations& x) {
  const size_t ld = shape.mla_input_rows();
  const MatMulJob input = x.TimesNarrow(weights.input, s.input, ld, batch.rows);
  if (Status done = ParallelMatMul(batch.pool, {&input, 1}); !done) return done;
  Status normed = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const float* in = s.input + row * ld;
      RmsNorm({in, shape.query_rank}, weights.query_norm, shape.epsilon,
              {s.query_latent.row(row), shape.query_rank});
      in += shape.query_rank;
      float* latent = s.latent_rows + row * shape.latent_row();
      RmsNorm({in, shape.kv_rank}, weights.latent_norm, shape.epsilon, {latent, shape.kv_rank});
      std::copy_n(in + shape.kv_rank, shape.rope, latent + shape.kv_rank);
    }
    s.query_latent.Seal(begin, end);
  });
  if (!normed) return normed;
  const MatMulJob query =
      s.query_latent.Times(weights.query, s.query, shape.mla_heads * shape.qk, batch.rows);
  return ParallelMatMul(batch.pool, {&query, 1});
}

// Products of every head with keys: absorbed queries, and keys and values to be stored expanded.
Status MultiplyKeys(const K3Shape& shape, const MlaWeights& weights, const Batch& batch,
                    const MlaScratch& s) {
  const size_t heads = shape.mla_heads;
  const size_t row = shape.latent_row();
  if (s.latent) {
    const HeadProduct absorb{
        weights.key_transposed, s.query, shape.qk, heads * shape.qk, s.absorbed, row, heads * row};
    if (Status done = MultiplyHeads(batch, {&absorb, 1}); !done) return done;
  }
  if (s.expanded) {
    const HeadProduct expand[] = {
        {weights.key, s.latent_rows, 0, row, s.keys, shape.nope, heads * shape.nope},
        {weights.value, s.latent_rows, 0, row, s.values, shape.value, heads * shape.value}};
    if (Status done = MultiplyHeads(batch, expand); !done) return done;
  }
  return {};
}

void StoreExpanded(const K3Shape& shape, const MlaScratch& s, size_t row, float* out) {
  const size_t heads = shape.mla_heads;
  const float* shared = s.latent_rows + row * shape.latent_row() + shape.kv_rank;
  for (size_t h = 0; h < heads; ++h) {
    out = std::copy_n(s.keys + (row * heads + h) * shape.nope, shape.nope, out);
    out = std::copy_n(shared, shape.rope, out);
  }
  std::copy_n(s.values + row * heads * shape.value, heads * shape.value, out);
}

// Appends one row to the cache of latents and completes the absorbed queries of its heads.
void StoreLatentRow(const K3Shape& shape, size_t index, const MlaScratch& s, const BatchItem& item,
                    size_t token) {
  const size_t width = shape.latent_row();
  const size_t row = item.first_row + token;
  const size_t position = item.position + token;
  const float* latent = s.latent_rows + row * width;
  const bool bytes = item.sequence->byte_kv();
  if (bytes) {
    StoreLatent(item.sequence->byte_shape(), latent, position % kLatentTile,
                item.sequence->KvTile(index, position));
  } else {
    std::copy_n(latent, width, item.sequence->KvRow(index, position));
  }
  const size_t first = row * shape.mla_heads;
  const size_t end = first + shape.mla_heads;
  for (size_t slot = first; slot < end; ++slot) {
    std::copy_n(s.query + slot * shape.qk + shape.nope, shape.rope,
                s.absorbed + slot * width + shape.kv_rank);
  }
  if (!bytes) return;
  const size_t groups = Q8Groups(shape.kv_rank);
  QuantizeRows(s.absorbed, width, shape.kv_rank, first, end, s.absorbed_bytes.Columns(0, groups));
  QuantizeRows(s.absorbed + shape.kv_rank, width, shape.rope, first, end,
               s.absorbed_bytes.Columns(groups, Q8Groups(shape.rope)));
}

// Appends the rows of this batch to the caches and completes the absorbed queries.
Status Store(const K3Shape& shape, size_t index, const Batch& batch, const MlaScratch& s) {
  for (const BatchItem& item : batch.items) {
    const bool expanded = item.sequence->options().expanded_kv;
    Status done = ForRows(batch, item.tokens, [&](size_t begin, size_t end) {
      for (size_t t = begin; t < end; ++t) {
        if (expanded) {
          StoreExpanded(shape, s, item.first_row + t,
                        item.sequence->KvRow(index, item.position + t));
        } else {
          StoreLatentRow(shape, index, s, item, t);
        }
      }
    });
    if (!done) return done;
  }
  return {};
}

Status Attend(const K3Shape& shape, const MlaWeights& weights, size_t index, const Batch& batch,
              const MlaScratch& s) {
  const size_t heads = shape.mla_heads;
  if (s.latent) {
    Status done = AttendCache(shape, index, batch, {s.absorbed, s.absorbed_bytes, s.mixed, false});
    if (!done) return done;
    const HeadProduct values{weights.value,         s.mixed,         shape.kv_rank,
                             heads * shape.kv_rank, s.output.values, shape.value,
                             heads * shape.value};
    if (done = MultiplyHeads(batch, {&values, 1}); !done) return done;
  }
  if (s.expanded) return AttendCache(shape, index, batch, {s.query, {}, s.output.values, true});
  return {};
}

}  // namespace

MlaScratch::MlaScratch(const K3Shape& shape, const Batch& batch) : latent(false), expanded(false) {
  for (const BatchItem& item : batch.items) {
    (item.sequence->options().expanded_kv ? expanded : latent) = true;
  }
  const auto rows = [&](size_t width, bool needed = true) {
    return needed ? batch.scratch.Allocate<float>(batch.rows * width).data() : nullptr;
  };
  const size_t heads = shape.mla_heads;
  input = rows(shape.mla_input_rows());
  query_latent = Activations::New(batch, shape.query_rank);
  query = rows(heads * shape.qk);
  latent_rows = rows(shape.latent_row());
  absorbed = rows(heads * shape.latent_row(), latent);
  if (latent && batch.precision == Precision::kQ8) {
    const size_t groups = Q8Groups(shape.kv_rank) + Q8Groups(shape.rope);
    absorbed_bytes = {NewQ8Rows(batch.scratch, batch.rows * heads, groups),
                      NewQ8Rows(batch.scratch, batch.rows * heads, groups)};
  }
  // Rows of expanded sequences stay unused, but products run over all rows: no garbage in them.
  mixed = rows(heads * shape.kv_rank, latent);
  if (latent && expanded) std::fill_n(mixed, batch.rows * heads * shape.kv_rank, 0.0f);
  keys = rows(heads * shape.nope, expanded);
  values = rows(heads * shape.value, expanded);
  output = Activations::NewWide(batch, heads * shape.value);
}

Status MlaForward(const K3Shape& shape, const MlaWeights& weights, size_t index, const Batch& batch,
                  const MlaScratch& s, const Activations& x, float* y) {
  if (Status done = Project(shape, weights, batch, s, x); !done) return done;
  if (Status done = MultiplyKeys(shape, weights, batch, s); !done) return done;
  if (Status done = Store(shape, index, batch, s); !done) return done;
  if (Status done = Attend(shape, weights, index, batch, s); !done) return done;

  const size_t width = shape.mla_heads * shape.value;
  const size_t gate_column = shape.query_rank + shape.latent_row();
  Status gated = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) {
      const std::span<float> o(s.output.row(row), width);
      SigmoidGate({s.input + row * shape.mla_input_rows() + gate_column, width}, o, o);
    }
    s.output.Seal(begin, end);
  });
  if (!gated) return gated;
  const MatMulJob output = s.output.Times(weights.output, y, shape.hidden, batch.rows);
  return ParallelMatMul(batch.pool, {&output, 1});
}

}  // namespace mk::k3
