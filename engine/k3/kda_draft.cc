#include "engine/k3/kda_draft.h"

#include <algorithm>
#include <utility>

#include "engine/arch/model_sequence.h"
#include "engine/kernels/causal_conv.h"
#include "engine/kernels/delta_rule.h"

namespace mk::k3 {

uint64_t KdaDraft::Bytes(const K3Shape& shape, size_t tokens) {
  if (tokens == 0) return 0;
  const uint64_t floats = shape.kda_state_floats() + DraftCapacity(tokens) * RowFloats(shape);
  return shape.kda_layers * floats * sizeof(float);
}

Status KdaDraft::Reserve(const K3Shape& shape, size_t tokens, size_t kept) {
  if (state.size() > 0) {
    if (Status own = state.Own(); !own) return own;
  } else {
    Result<SharedPage> made =
        SharedPage::New(shape.kda_layers * shape.kda_state_floats() * sizeof(float));
    if (!made) return Fail(made.error());
    state = std::move(*made);
  }
  if (tokens <= capacity_) return inputs_.Own();
  KdaDraft larger;
  larger.capacity_ = DraftCapacity(tokens);
  const size_t layer_floats = larger.capacity_ * RowFloats(shape);
  Result<SharedPage> made = SharedPage::New(shape.kda_layers * layer_floats * sizeof(float));
  if (!made) return Fail(made.error());
  larger.inputs_ = std::move(*made);
  for (size_t layer = 0; kept > 0 && layer < shape.kda_layers; ++layer) {
    std::copy_n(Rows(shape, layer), kept * RowFloats(shape), larger.Rows(shape, layer));
  }
  inputs_ = std::move(larger.inputs_);
  capacity_ = larger.capacity_;
  return {};
}

void KeepInputs(const K3Shape& shape, size_t head, const KdaInputs& in, float* row) {
  const size_t p = shape.kda_width;
  const size_t dim = shape.kda_dim;
  float* out = row + head * dim;
  for (const float* values : {in.raw[0], in.raw[1], in.raw[2], in.k, in.v, in.decay}) {
    std::copy_n(values, dim, out);
    out += p;
  }
  row[6 * p + head] = in.beta;
}

void ReplayMatrix(const K3Shape& shape, const float* rows, size_t tokens, size_t head,
                  const float* from, float* to) {
  const size_t p = shape.kda_width;
  const float* const own = rows + head * shape.kda_dim;
  DeltaRuleInput in;
  in.dim = shape.kda_dim;
  in.k = own + 3 * p;
  in.v = own + 4 * p;
  in.decay = own + 5 * p;
  in.beta = rows + 6 * p + head;
  in.ld = in.ld_decay = in.ld_beta = KdaDraft::RowFloats(shape);
  DeltaRuleWrites(in, tokens, from, to);
}

void ReplayWindow(const K3Shape& shape, const float* rows, size_t tokens, size_t part, size_t begin,
                  size_t end, float* window) {
  const CausalConv conv{shape.kda_width, shape.conv_taps, nullptr};
  AdvanceConvHistory(conv, begin, end, rows + part * shape.kda_width, KdaDraft::RowFloats(shape),
                     tokens, window);
}

}  // namespace mk::k3
