// The delta rule over a chunk of 64 tokens as matrix products.
//
// With P(a, b) = prod_{a < u <= b} e^{g_u} (a vector over key channels, all factors <= 1) and S0
// the state before the chunk, the recurrence unrolls to
//
//   kk[r][i] = sum_c k_r[c] k_i[c] P(i, r)[c]    i < r
//   qk[r][i] = sum_c q_r[c] k_i[c] P(i, r)[c]    i <= r
//   d_r = beta_r (v_r - (P(-1, r) k_r)^T S0 - sum_{i<r} kk[r][i] d_i)
//   o_r = (P(-1, r) q_r)^T S0 + sum_{i<=r} qk[r][i] d_i
//   S   = P(-1, 63) S0 + sum_j (P(j, 63) k_j) d_j^T
//
// kk and qk are cut into 16 x 16 blocks. Below the diagonal P(i, r) splits at the start s of the
// row block into P(s-1, r) on the row side and P(i, s-1) on the column side: a plain product of two
// matrices whose factors can only underflow when the product is negligible. On the diagonal P(i, r)
// runs along i.

#include <algorithm>

#include "engine/kernels/delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/delta_rule_chunk.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

#ifndef MK_DELTA_RULE_CHUNK_ONCE
#define MK_DELTA_RULE_CHUNK_ONCE
namespace mk {
namespace {

constexpr size_t kChunk = kDeltaRuleChunk;
constexpr size_t kSub = 16;  // rows of a sub-block

// Scratch of one chunk.
struct ChunkBuffers {
  float* k_t;        // [dim][64] keys, transposed
  float* q_t;        // [dim][64] queries, transposed
  float* columns_t;  // [dim][64] P(i, s-1) k_i, transposed; s moves on with the row block
  float* k_start;    // [64][dim] P(-1, r) k_r
  float* q_start;    // [64][dim] P(-1, r) q_r
  float* k_end;      // [64][dim] P(j, 63) k_j
  float* k_rows;     // [16][dim] P(s-1, r) k_r
  float* q_rows;     // [16][dim] P(s-1, r) q_r
  float* delta;      // [64][dim] d
  float* minus_kk;   // [64][64] -kk; zero on and above the diagonal
  float* qk;         // [64][64] zero above the diagonal
  float* product;    // [dim] a running product
};

constexpr size_t ChunkFloats(size_t dim) {
  return dim * (7 * kChunk + 2 * kSub + 1) + 2 * kChunk * kChunk;
}

inline ChunkBuffers Divide(float* scratch, size_t dim) {
  ChunkBuffers buffers{};
  const auto take = [&scratch](size_t count) {
    float* begin = scratch;
    scratch += count;
    return begin;
  };
  buffers.minus_kk = take(kChunk * kChunk);
  buffers.qk = take(kChunk * kChunk);
  buffers.k_t = take(kChunk * dim);
  buffers.q_t = take(kChunk * dim);
  buffers.columns_t = take(kChunk * dim);
  buffers.k_start = take(kChunk * dim);
  buffers.q_start = take(kChunk * dim);
  buffers.k_end = take(kChunk * dim);
  buffers.delta = take(kChunk * dim);
  buffers.k_rows = take(kSub * dim);
  buffers.q_rows = take(kSub * dim);
  buffers.product = take(dim);
  return buffers;
}

// Strides of a factor whose element (row, term) is at row * row + term * term.
struct Strides {
  size_t row;
  size_t term;
};

}  // namespace
}  // namespace mk
#endif

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// c[r][j] += sum_t a(r, t) b[t][j] for kRows rows and kBlock groups of 16 columns; t ascending.
template <size_t kRows, size_t kBlock>
HWY_INLINE void Tile(size_t terms, const float* HWY_RESTRICT a, Strides as,
                     const float* HWY_RESTRICT b, size_t ldb, float* HWY_RESTRICT c, size_t ldc) {
  V16 sum[kRows][kBlock];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kBlock; ++v) sum[r][v] = Load16(c + r * ldc + 16 * v);
  }
  for (size_t t = 0; t < terms; ++t) {
    V16 b_t[kBlock];
    for (size_t v = 0; v < kBlock; ++v) b_t[v] = Load16(b + t * ldb + 16 * v);
    for (size_t r = 0; r < kRows; ++r) {
      const V16 a_rt = Set16(a[r * as.row + t * as.term]);
      for (size_t v = 0; v < kBlock; ++v) sum[r][v] = Fma16(a_rt, b_t[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kBlock; ++v) Store16(sum[r][v], c + r * ldc + 16 * v);
  }
}

// The same for one row and the last `width` < 16 columns.
HWY_INLINE void PartialTile(size_t width, size_t terms, const float* a, Strides as, const float* b,
                            size_t ldb, float* c) {
  V16 sum = LoadPartial16(c, width);
  for (size_t t = 0; t < terms; ++t) {
    sum = Fma16(Set16(a[t * as.term]), LoadPartial16(b + t * ldb, width), sum);
  }
  StorePartial16(sum, c, width);
}

template <size_t kRows>
HWY_INLINE void RowTile(size_t cols, size_t terms, const float* a, Strides as, const float* b,
                        size_t ldb, float* c, size_t ldc) {
  constexpr size_t kBlock = kV16Parts == 1 ? 2 : 1;
  size_t j = 0;
  for (; j + 16 * kBlock <= cols; j += 16 * kBlock) {
    Tile<kRows, kBlock>(terms, a, as, b + j, ldb, c + j, ldc);
  }
  for (; j + 16 <= cols; j += 16) Tile<kRows, 1>(terms, a, as, b + j, ldb, c + j, ldc);
  if (j == cols) return;
  for (size_t r = 0; r < kRows; ++r) {
    PartialTile(cols - j, terms, a + r * as.row, as, b + j, ldb, c + r * ldc + j);
  }
}

// c [rows][cols] += a [rows][terms] b [terms][cols].
HWY_NOINLINE void AddProduct(size_t rows, size_t cols, size_t terms, const float* a, Strides as,
                             const float* b, size_t ldb, float* c, size_t ldc) {
  const size_t quads = rows / 4;
  for (size_t i = 0; i < quads; ++i) {
    RowTile<4>(cols, terms, a + 4 * i * as.row, as, b, ldb, c + 4 * i * ldc, ldc);
  }
  for (size_t i = 0; i < rows % 4; ++i) {
    const size_t r = 4 * quads + i;
    RowTile<1>(cols, terms, a + r * as.row, as, b, ldb, c + r * ldc, ldc);
  }
}

// Keys and queries times the decays from the chunk's start, and keys times those to its end.
void ScaleToEnds(const DeltaRuleInput& in, const ChunkBuffers& w) {
  const size_t dim = in.dim;
  std::fill_n(w.product, dim, 1.0f);
  for (size_t r = 0; r < kChunk; ++r) {
    const float* HWY_RESTRICT decay = in.decay + r * in.ld_decay;
    const float* HWY_RESTRICT k = in.k + r * in.ld;
    const float* HWY_RESTRICT q = in.q + r * in.ld;
    for (size_t c = 0; c < dim; ++c) {
      w.product[c] *= decay[c];
      w.k_start[r * dim + c] = w.product[c] * k[c];
      w.q_start[r * dim + c] = w.product[c] * q[c];
    }
  }
  std::fill_n(w.product, dim, 1.0f);
  for (size_t j = kChunk; j-- > 0;) {
    const float* HWY_RESTRICT decay = in.decay + j * in.ld_decay;
    const float* HWY_RESTRICT k = in.k + j * in.ld;
    for (size_t c = 0; c < dim; ++c) {
      w.k_end[j * dim + c] = w.product[c] * k[c];
      w.product[c] *= decay[c];
    }
  }
}

void Transpose(const DeltaRuleInput& in, const ChunkBuffers& w) {
  for (size_t t = 0; t < kChunk; ++t) {
    for (size_t c = 0; c < in.dim; ++c) {
      w.k_t[c * kChunk + t] = in.k[t * in.ld + c];
      w.q_t[c * kChunk + t] = in.q[t * in.ld + c];
    }
  }
}

// Blocks of kk and qk left of the diagonal block that starts at row s.
void BlocksBelowDiagonal(const DeltaRuleInput& in, const ChunkBuffers& w, size_t s) {
  const size_t dim = in.dim;
  std::fill_n(w.product, dim, 1.0f);
  for (size_t r = 0; r < kSub; ++r) {
    const float* HWY_RESTRICT decay = in.decay + (s + r) * in.ld_decay;
    const float* HWY_RESTRICT k = in.k + (s + r) * in.ld;
    const float* HWY_RESTRICT q = in.q + (s + r) * in.ld;
    for (size_t c = 0; c < dim; ++c) {
      w.product[c] *= decay[c];
      w.k_rows[r * dim + c] = -w.product[c] * k[c];
      w.q_rows[r * dim + c] = w.product[c] * q[c];
    }
  }
  const Strides rows{dim, 1};
  AddProduct(kSub, s, dim, w.k_rows, rows, w.columns_t, kChunk, w.minus_kk + s * kChunk, kChunk);
  AddProduct(kSub, s, dim, w.q_rows, rows, w.columns_t, kChunk, w.qk + s * kChunk, kChunk);
}

// Moves the split of the column side from s to s + 16: earlier columns gain P(s-1, s+15), those of
// the block at s get P(i, s+15).
void AdvanceColumns(const DeltaRuleInput& in, const ChunkBuffers& w, size_t s) {
  for (size_t c = 0; c < in.dim; ++c) {
    float* HWY_RESTRICT column = w.columns_t + c * kChunk;
    float product = 1.0f;
    for (size_t i = s + kSub; i-- > s;) {
      column[i] = product * w.k_t[c * kChunk + i];
      product *= in.decay[i * in.ld_decay + c];
    }
    const V16 all = Set16(product);
    for (size_t i = 0; i < s; i += 16) Store16(Mul16(Load16(column + i), all), column + i);
  }
}

// The diagonal block at s. The 16 lanes are rows r; `run` holds P(i, r)[c] for r >= i and 0 for r <
// i while i walks down.
void DiagonalBlock(const DeltaRuleInput& in, const ChunkBuffers& w, size_t s) {
  alignas(64) float unit[2 * kSub] = {};
  unit[kSub] = 1.0f;                       // (unit + kSub - i)[r] is 1 where r == i
  alignas(64) float kk[kSub * kSub] = {};  // [i][r]
  alignas(64) float qk[kSub * kSub] = {};
  for (size_t c = 0; c < in.dim; ++c) {
    const V16 k_r = Load16(w.k_t + c * kChunk + s);
    const V16 q_r = Load16(w.q_t + c * kChunk + s);
    V16 run = Zero16();
    float decay = 1.0f;
    for (size_t i = kSub; i-- > 0;) {
      run = Fma16(run, Set16(decay), Load16(unit + kSub - i));
      decay = in.decay[(s + i) * in.ld_decay + c];
      const V16 term = Mul16(run, Set16(w.k_t[c * kChunk + s + i]));
      Store16(Fma16(term, k_r, Load16(kk + i * kSub)), kk + i * kSub);
      Store16(Fma16(term, q_r, Load16(qk + i * kSub)), qk + i * kSub);
    }
  }
  for (size_t r = 0; r < kSub; ++r) {
    for (size_t i = 0; i <= r; ++i) {
      if (i < r) w.minus_kk[(s + r) * kChunk + s + i] = -kk[i * kSub + r];
      w.qk[(s + r) * kChunk + s + i] = qk[i * kSub + r];
    }
  }
}

// d: the values minus what S0 predicts, then forward substitution, block by block.
void SolveDelta(const DeltaRuleInput& in, const ChunkBuffers& w, const float* state) {
  const size_t dim = in.dim;
  std::fill_n(w.delta, kChunk * dim, 0.0f);
  AddProduct(kChunk, dim, dim, w.k_start, {dim, 1}, state, dim, w.delta, dim);
  for (size_t r = 0; r < kChunk; ++r) {
    for (size_t j = 0; j < dim; ++j) {
      w.delta[r * dim + j] = in.v[r * in.ld + j] - w.delta[r * dim + j];
    }
  }
  for (size_t s = 0; s < kChunk; s += kSub) {
    AddProduct(kSub, dim, s, w.minus_kk + s * kChunk, {kChunk, 1}, w.delta, dim, w.delta + s * dim,
               dim);
    for (size_t r = s; r < s + kSub; ++r) {
      float* delta = w.delta + r * dim;
      RowTile<1>(dim, r - s, w.minus_kk + r * kChunk + s, {kChunk, 1}, w.delta + s * dim, dim,
                 delta, dim);
      for (size_t j = 0; j < dim; ++j) delta[j] *= in.beta[r * in.ld_beta];
    }
  }
}

void Chunk(const DeltaRuleInput& in, float* state, float* out, size_t ld_out, float* scratch) {
  const size_t dim = in.dim;
  const ChunkBuffers w = Divide(scratch, dim);
  std::fill_n(w.minus_kk, 2 * kChunk * kChunk, 0.0f);  // and qk behind it
  ScaleToEnds(in, w);
  Transpose(in, w);
  for (size_t s = 0; s < kChunk; s += kSub) {
    if (s > 0) BlocksBelowDiagonal(in, w, s);
    DiagonalBlock(in, w, s);
    AdvanceColumns(in, w, s);
  }
  SolveDelta(in, w, state);

  for (size_t r = 0; r < kChunk; ++r) std::fill_n(out + r * ld_out, dim, 0.0f);
  AddProduct(kChunk, dim, dim, w.q_start, {dim, 1}, state, dim, out, ld_out);
  for (size_t s = 0; s < kChunk; s += kSub) {
    AddProduct(kSub, dim, s + kSub, w.qk + s * kChunk, {kChunk, 1}, w.delta, dim, out + s * ld_out,
               ld_out);
  }

  std::fill_n(w.product, dim, 1.0f);
  for (size_t r = 0; r < kChunk; ++r) {
    for (size_t c = 0; c < dim; ++c) w.product[c] *= in.decay[r * in.ld_decay + c];
  }
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < dim; ++j) state[i * dim + j] *= w.product[i];
  }
  AddProduct(dim, dim, kChunk, w.k_end, {1, dim}, w.delta, dim, state, dim);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Chunk);

size_t DeltaRuleScratch(size_t dim) {
  return ChunkFloats(dim);
}

void DeltaRuleChunk(const DeltaRuleInput& in, float* state, float* out, size_t ld_out,
                    std::span<float> scratch) {
  HWY_DYNAMIC_DISPATCH(Chunk)(in, state, out, ld_out, scratch.data());
}

}  // namespace mk
#endif  // HWY_ONCE
