// The delta rule token by token: two sweeps over the state per token. The first decays a row and
// adds it to the prediction, the second writes a row and adds it to the answer; both run over
// columns in blocks whose sums stay in registers.

#include "engine/kernels/delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/delta_rule.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Sixteen columns, or the first `width` of them.
template <bool kPartial>
HWY_INLINE V16 LoadColumns(const float* p, size_t width) {
  return kPartial ? LoadPartial16(p, width) : Load16(p);
}

template <bool kPartial>
HWY_INLINE void StoreColumns(const V16& v, float* p, size_t width) {
  if (kPartial) {
    StorePartial16(v, p, width);
  } else {
    Store16(v, p);
  }
}

// A token's step from one state to another, which may be the same.
struct Step {
  const DeltaRuleInput& in;
  size_t token;
  const float* from;
  float* state;
  float* out;
};

// kBlock groups of 16 columns from `first` on; a partial group has `width` columns. Without kRead
// the answer is left out.
template <bool kRead, size_t kBlock, bool kPartial>
HWY_INLINE void StepColumns(const Step& step, size_t first, size_t width) {
  const DeltaRuleInput& in = step.in;
  const size_t token = step.token;
  const size_t dim = in.dim;
  const float* HWY_RESTRICT q = kRead ? in.q + token * in.ld : nullptr;
  const float* HWY_RESTRICT k = in.k + token * in.ld;
  const float* HWY_RESTRICT decay = in.decay + token * in.ld_decay;
  const float* HWY_RESTRICT v = in.v + token * in.ld + first;
  const float beta = in.beta[token * in.ld_beta];

  V16 sum[kBlock];
  for (size_t b = 0; b < kBlock; ++b) sum[b] = Zero16();
  for (size_t i = 0; i < dim; ++i) {
    const float* from = step.from + i * dim + first;
    float* row = step.state + i * dim + first;
    const V16 decay_i = Set16(decay[i]);
    const V16 k_i = Set16(k[i]);
    for (size_t b = 0; b < kBlock; ++b) {
      const V16 s = Mul16(LoadColumns<kPartial>(from + 16 * b, width), decay_i);
      StoreColumns<kPartial>(s, row + 16 * b, width);
      sum[b] = Fma16(k_i, s, sum[b]);
    }
  }
  V16 delta[kBlock];
  for (size_t b = 0; b < kBlock; ++b) {
    delta[b] = Sub16(LoadColumns<kPartial>(v + 16 * b, width), sum[b]);
    sum[b] = Zero16();
  }
  for (size_t i = 0; i < dim; ++i) {
    float* row = step.state + i * dim + first;
    const V16 write_i = Set16(beta * k[i]);
    for (size_t b = 0; b < kBlock; ++b) {
      const V16 s = Fma16(write_i, delta[b], LoadColumns<kPartial>(row + 16 * b, width));
      StoreColumns<kPartial>(s, row + 16 * b, width);
      if (kRead) sum[b] = Fma16(Set16(q[i]), s, sum[b]);
    }
  }
  if (!kRead) return;
  float* const out = step.out + first;
  for (size_t b = 0; b < kBlock; ++b) StoreColumns<kPartial>(sum[b], out + 16 * b, width);
}

template <bool kRead>
HWY_INLINE void AllSteps(const DeltaRuleInput& in, size_t tokens, const float* from, float* state,
                         float* out, size_t ld_out) {
  // Columns that the registers hold twice; wide blocks read the state as a stream.
  constexpr size_t kBlock = kV16Parts == 1 ? 8 : 4;
  for (size_t t = 0; t < tokens; ++t, from = state) {
    const Step step{in, t, from, state, kRead ? out + t * ld_out : nullptr};
    size_t j = 0;
    for (; j + 16 * kBlock <= in.dim; j += 16 * kBlock) {
      StepColumns<kRead, kBlock, false>(step, j, 16);
    }
    for (; j + 16 <= in.dim; j += 16) StepColumns<kRead, 1, false>(step, j, 16);
    if (j < in.dim) StepColumns<kRead, 1, true>(step, j, in.dim - j);
  }
}

void Steps(const DeltaRuleInput& in, size_t tokens, const float* from, float* state, float* out,
           size_t ld_out) {
  AllSteps<true>(in, tokens, from, state, out, ld_out);
}

void Writes(const DeltaRuleInput& in, size_t tokens, const float* from, float* state) {
  AllSteps<false>(in, tokens, from, state, nullptr, 0);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Steps);
HWY_EXPORT(Writes);

void DeltaRuleSteps(const DeltaRuleInput& in, size_t tokens, const float* from, float* state,
                    float* out, size_t ld_out) {
  HWY_DYNAMIC_DISPATCH(Steps)(in, tokens, from, state, out, ld_out);
}

void DeltaRuleWrites(const DeltaRuleInput& in, size_t tokens, const float* from, float* state) {
  HWY_DYNAMIC_DISPATCH(Writes)(in, tokens, from, state);
}

}  // namespace mk
#endif  // HWY_ONCE
