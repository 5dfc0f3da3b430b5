#include "engine/k3/kda_layer.h"

#include <algorithm>
#include <cmath>

#include "engine/k3/kda_draft.h"
#include "engine/kernels/activations.h"
#include "engine/kernels/causal_conv.h"
#include "engine/kernels/delta_rule.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

// One head of one item, with everything that its tasks read and write.
struct Head {
  const K3Shape& shape;
  const KdaWeights& weights;
  const KdaScratch& scratch;
  const BatchItem& item;
  size_t layer;  // among KDA layers
  size_t head;

  size_t channel() const { return head * shape.kda_dim; }
  float* input(size_t token) const {
    return scratch.input + (item.first_row + token) * shape.kda_input_rows();
  }
  // Part 0, 1, 2 = q, k, v of a token.
  std::span<float> conv(size_t token, size_t part) const {
    float* row = scratch.conv + (item.first_row + token) * 3 * shape.kda_width;
    return {row + part * shape.kda_width + channel(), shape.kda_dim};
  }
  std::span<float> decay(size_t token) const {
    return {scratch.decay + (item.first_row + token) * shape.kda_width + channel(), shape.kda_dim};
  }
  std::span<float> output(size_t token) const {
    return {scratch.output.row(item.first_row + token) + channel(), shape.kda_dim};
  }
};

// Channels of a head are whole panels, so that a head can make its own decays.
bool HeadDecays(const K3Shape& shape) {
  return shape.kda_dim % kPanelRows == 0;
}

MatMulJob DecayProduct(const K3Shape& shape, const KdaWeights& weights, const KdaScratch& scratch,
                       size_t first_row, size_t rows) {
  const size_t ld = shape.kda_input_rows();
  const float* in = scratch.input + first_row * ld + 4 * shape.kda_width;
  return {weights.decay,   in,  ld, scratch.decay + first_row * shape.kda_width,
          shape.kda_width, rows};
}

// Convolutions, unit queries and keys, decays e^g, and write strengths into `beta` [tokens].
void PrepareHead(const Head& h, std::span<float> beta) {
  const K3Shape& shape = h.shape;
  const size_t p = shape.kda_width;
  const size_t begin = h.channel();
  for (size_t part = 0; part < 3; ++part) {
    const CausalConv conv{p, shape.conv_taps, h.weights.conv + part * shape.conv_taps * p};
    float* out = h.scratch.conv + h.item.first_row * 3 * p + part * p;
    CausalConvSilu(conv, begin, begin + shape.kda_dim, h.input(0) + part * p,
                   shape.kda_input_rows(), h.item.tokens,
                   h.item.sequence->After(h.layer).Window(part), out, 3 * p);
  }
  if (HeadDecays(shape)) {
    MatMulJob decay = DecayProduct(shape, h.weights, h.scratch, h.item.first_row, h.item.tokens);
    decay.w = RowRange(decay.w, begin, shape.kda_dim);
    decay.y += begin;
    MatMul(decay);
  }
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape.kda_dim));
  const Vector bias = h.weights.decay_bias.subspan(begin, shape.kda_dim);
  const Vector rate = h.weights.decay_rate.subspan(begin, shape.kda_dim);
  const size_t beta_column = 4 * p + shape.decay_rank + h.head;
  for (size_t t = 0; t < h.item.tokens; ++t) {
    L2Normalize(h.conv(t, 0), shape.kda_norm, query_scale, h.conv(t, 0));
    L2Normalize(h.conv(t, 1), shape.kda_norm, 1.0f, h.conv(t, 1));
    DecayGate(h.decay(t), bias, rate, shape.decay_floor, h.decay(t));
    Exp(h.decay(t), h.decay(t));
    beta[t] = h.input(t)[beta_column];
  }
  Sigmoid(beta, beta);
}

// Takes the state before the pass through the tokens of the last draft that were kept. A draft then
// goes on with windows of its own.
void StartHead(const Head& h) {
  const K3Shape& shape = h.shape;
  const K3Sequence& sequence = *h.item.sequence;
  const K3Sequence::KdaState state = sequence.Before(h.layer);
  const size_t begin = h.channel();
  const size_t end = begin + shape.kda_dim;
  if (const size_t replay = sequence.replay(); replay > 0) {
    const float* const rows = sequence.DraftRows(h.layer);
    for (size_t part = 0; part < 3; ++part) {
      ReplayWindow(shape, rows, replay, part, begin, end, state.Window(part));
    }
    ReplayMatrix(shape, rows, replay, h.head, state.Matrix(h.head), state.Matrix(h.head));
  }
  if (!h.item.draft) return;
  for (size_t row = 0; row < 3 * (shape.conv_taps - 1); ++row) {
    const size_t offset = row * shape.kda_width + begin;
    std::copy_n(state.data + offset, shape.kda_dim, sequence.After(h.layer).data + offset);
  }
}

// Keeps what the recurrence reads of a draft.
void KeepHead(const Head& h, std::span<const float> beta) {
  const size_t p = h.shape.kda_width;
  float* row = h.item.sequence->DraftRows(h.layer);
  for (size_t t = 0; t < h.item.tokens; ++t, row += KdaDraft::RowFloats(h.shape)) {
    const float* raw = h.input(t) + h.channel();
    KeepInputs(h.shape, h.head,
               {{raw, raw + p, raw + 2 * p},
                h.conv(t, 1).data(),
                h.conv(t, 2).data(),
                h.decay(t).data(),
                beta[t]},
               row);
  }
}

// The recurrence: blocks of 64 tokens at multiples of 64 as chunks when allowed, everything else
// token by token, so that where a prompt is cut does not matter. Drafts are token by token as a
// whole: they stand for tokens that come one at a time.
void RunHead(const Head& h, std::span<const float> beta, std::span<float> chunk_scratch) {
  static_assert(kPrefillBlock == kDeltaRuleChunk);
  const K3Shape& shape = h.shape;
  const float* from = h.item.sequence->Before(h.layer).Matrix(h.head);
  float* const state = h.item.sequence->After(h.layer).Matrix(h.head);
  const bool chunked = h.item.sequence->options().chunked_prefill && !h.item.draft;
  size_t t = 0;
  while (t < h.item.tokens) {
    DeltaRuleInput in;
    in.dim = shape.kda_dim;
    in.q = h.conv(t, 0).data();
    in.k = h.conv(t, 1).data();
    in.v = h.conv(t, 2).data();
    in.ld = 3 * shape.kda_width;
    in.decay = h.decay(t).data();
    in.ld_decay = shape.kda_width;
    in.beta = beta.data() + t;
    const size_t in_block = (h.item.position + t) % kPrefillBlock;
    const size_t left = h.item.tokens - t;
    float* out = h.output(t).data();
    if (chunked && in_block == 0 && left >= kPrefillBlock) {
      DeltaRuleChunk(in, state, out, shape.kda_width, chunk_scratch);
      t += kPrefillBlock;
    } else {
      const size_t steps = std::min(left, kPrefillBlock - in_block);
      DeltaRuleSteps(in, steps, from, state, out, shape.kda_width);
      t += steps;
    }
    from = state;
  }
}

// About what a token of a head takes: the state is read and written once, at 50 GB/s.
uint64_t TokenNanoseconds(const K3Shape& shape) {
  return 100 + 2 * sizeof(float) * shape.kda_dim * shape.kda_dim / 50;
}

// Groups of bytes do not cross heads, so that each head makes its own.
bool HeadSeals(const K3Shape& shape) {
  return shape.kda_dim % kQ8Group == 0;
}

// Norm, then output gate.
void FinishHead(const Head& h) {
  const size_t gate_column = 3 * h.shape.kda_width + h.channel();
  for (size_t t = 0; t < h.item.tokens; ++t) {
    const std::span<float> o = h.output(t);
    RmsNorm(o, h.weights.norm, h.shape.epsilon, o);
    SigmoidGate({h.input(t) + gate_column, h.shape.kda_dim}, o, o);
  }
  const Activations& all = h.scratch.output;
  if (all.q8.high.values == nullptr || !HeadSeals(h.shape)) return;
  const Q8Activations own =
      all.q8.From(h.item.first_row).Columns(h.channel() / kQ8Group, h.shape.kda_dim / kQ8Group);
  QuantizeRows(h.output(0).data(), all.ld, h.shape.kda_dim, 0, h.item.tokens, own);
}

}  // namespace

KdaScratch::KdaScratch(const K3Shape& shape, const Batch& batch) {
  const size_t p = shape.kda_width;
  input = batch.scratch.Allocate<float>(batch.rows * shape.kda_input_rows()).data();
  decay = batch.scratch.Allocate<float>(batch.rows * p).data();
  conv = batch.scratch.Allocate<float>(batch.rows * 3 * p).data();
  output = Activations::NewWide(batch, p);
  worker_floats = (DeltaRuleScratch(shape.kda_dim) + batch.rows + 15) / 16 * 16;
  worker = batch.scratch.Allocate<float>(batch.pool.size() * worker_floats);
}

Status KdaForward(const K3Shape& shape, const KdaWeights& weights, size_t index, const Batch& batch,
                  const KdaScratch& scratch, const Activations& x, float* y) {
  const size_t ld = shape.kda_input_rows();
  const MatMulJob input = x.TimesNarrow(weights.input, scratch.input, ld, batch.rows);
  if (Status done = ParallelMatMul(batch.pool, {&input, 1}); !done) return done;
  if (!HeadDecays(shape)) {
    const MatMulJob decay = DecayProduct(shape, weights, scratch, 0, batch.rows);
    if (Status done = ParallelMatMul(batch.pool, {&decay, 1}); !done) return done;
  }

  const size_t heads = shape.kda_heads;
  const size_t chunk_floats = DeltaRuleScratch(shape.kda_dim);
  const size_t tasks = batch.items.size() * heads;
  const uint64_t nanoseconds = batch.rows * heads * TokenNanoseconds(shape);
  Status done = batch.pool.ParallelFor(tasks, nanoseconds, [&](size_t task, size_t worker) {
    const Head head{shape, weights, scratch, batch.items[task / heads], index, task % heads};
    const std::span<float> own =
        scratch.worker.subspan(worker * scratch.worker_floats, scratch.worker_floats);
    const std::span<float> beta = own.subspan(chunk_floats, head.item.tokens);
    StartHead(head);
    PrepareHead(head, beta);
    if (head.item.draft) KeepHead(head, beta);
    RunHead(head, beta, own.first(chunk_floats));
    FinishHead(head);
  });
  if (!done) return done;

  if (!HeadSeals(shape)) {
    Status sealed = ForRows(batch, batch.rows,
                            [&](size_t begin, size_t end) { scratch.output.Seal(begin, end); });
    if (!sealed) return sealed;
  }
  const MatMulJob output = scratch.output.Times(weights.output, y, shape.hidden, batch.rows);
  return ParallelMatMul(batch.pool, {&output, 1});
}

}  // namespace mk::k3
