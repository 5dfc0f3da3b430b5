// The delta rule token by token: two sweeps over the state per token. The first decays a row and
// adds it to the prediction, the second writes a row and adds it to the answer; both run over
// columns in blocks whose sums stay in registers.

#include "engine/kernels/delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/delta_rule.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One token, columns [first, first + kBlock * Lanes(d)) of the state.
template <size_t kBlock, class D>
HWY_INLINE void StepColumns(D d, const DeltaRuleInput& in, size_t token, float* HWY_RESTRICT state,
                            size_t first, float* out) {
  const size_t lanes = hn::Lanes(d);
  const size_t dim = in.dim;
  const float* HWY_RESTRICT q = in.q + token * in.ld;
  const float* HWY_RESTRICT k = in.k + token * in.ld;
  const float* HWY_RESTRICT decay = in.decay + token * in.ld_decay;
  const float* v = in.v + token * in.ld;
  const float beta = in.beta[token];

  hn::Vec<D> sum[kBlock];
  for (size_t b = 0; b < kBlock; ++b) sum[b] = hn::Zero(d);
  for (size_t i = 0; i < dim; ++i) {
    float* row = state + i * dim + first;
    const auto decay_i = hn::Set(d, decay[i]);
    const auto k_i = hn::Set(d, k[i]);
    for (size_t b = 0; b < kBlock; ++b) {
      const auto s = hn::Mul(hn::LoadU(d, row + b * lanes), decay_i);
      hn::StoreU(s, d, row + b * lanes);
      sum[b] = hn::MulAdd(k_i, s, sum[b]);
    }
  }
  hn::Vec<D> delta[kBlock];
  for (size_t b = 0; b < kBlock; ++b) {
    delta[b] = hn::Sub(hn::LoadU(d, v + first + b * lanes), sum[b]);
    sum[b] = hn::Zero(d);
  }
  for (size_t i = 0; i < dim; ++i) {
    float* row = state + i * dim + first;
    const auto write_i = hn::Set(d, beta * k[i]);
    const auto q_i = hn::Set(d, q[i]);
    for (size_t b = 0; b < kBlock; ++b) {
      const auto s = hn::MulAdd(write_i, delta[b], hn::LoadU(d, row + b * lanes));
      hn::StoreU(s, d, row + b * lanes);
      sum[b] = hn::MulAdd(q_i, s, sum[b]);
    }
  }
  for (size_t b = 0; b < kBlock; ++b) hn::StoreU(sum[b], d, out + first + b * lanes);
}

void Steps(const DeltaRuleInput& in, size_t tokens, float* state, float* out, size_t ld_out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  for (size_t t = 0; t < tokens; ++t) {
    float* o = out + t * ld_out;
    size_t j = 0;
    for (; j + 8 * lanes <= in.dim; j += 8 * lanes) StepColumns<8>(d, in, t, state, j, o);
    for (; j + 2 * lanes <= in.dim; j += 2 * lanes) StepColumns<2>(d, in, t, state, j, o);
    for (; j + lanes <= in.dim; j += lanes) StepColumns<1>(d, in, t, state, j, o);
    for (; j < in.dim; ++j) StepColumns<1>(one, in, t, state, j, o);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Steps);

void DeltaRuleSteps(const DeltaRuleInput& in, size_t tokens, float* state, float* out,
                    size_t ld_out) {
  HWY_DYNAMIC_DISPATCH(Steps)(in, tokens, state, out, ld_out);
}

}  // namespace mk
#endif  // HWY_ONCE
