// KdaDraft: what a sequence keeps of a draft beside its state, so that it can go back into it.
//
// The state before the draft stays as it is; the recurrence makes a second one, after the whole
// draft. Of every token and layer the inputs of the recurrence are kept. If all tokens of the draft
// are taken, the second state is the sequence's; if none, the first still is. If some are, their
// inputs lead from the first state to the one between: the recurrence alone is done once more, no
// projection, expert or router. The next forward pass does it on its way, head by head, while the
// state is in the cache.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/k3/shape.h"
#include "engine/parallel/shared_page.h"

namespace mk::k3 {

class KdaDraft {
 public:
  // Floats kept of a token and layer: q, k, v before their convolutions, k and v as the recurrence
  // reads them, decays e^g (P each), write strengths (H).
  static size_t RowFloats(const K3Shape& shape) { return 6 * shape.kda_width + shape.kda_heads; }
  // What drafts of up to so many tokens hold.
  static uint64_t Bytes(const K3Shape& shape, size_t tokens);

  // Room for a draft of `tokens`, of its own; the first `kept` tokens of the present one stay.
  // kOutOfMemory; may throw std::bad_alloc.
  Status Reserve(const K3Shape& shape, size_t tokens, size_t kept);

  size_t bytes() const { return state.size() + inputs_.size(); }
  const SharedPage& inputs() const { return inputs_; }
  // Rows of a layer, token by token, RowFloats apart.
  float* Rows(const K3Shape& shape, size_t layer) const {
    return inputs_.floats().data() + layer * capacity_ * RowFloats(shape);
  }

  // After the whole draft; laid out as the state of the sequence.
  SharedPage state;

 private:
  SharedPage inputs_;  // [KDA layers][capacity][RowFloats]
  size_t capacity_ = 0;
};

// What the recurrence of a head read, to be kept in a row of KdaDraft: each [D] but beta.
struct KdaInputs {
  const float* raw[3];  // of q, k, v, before convolution
  const float* k;
  const float* v;
  const float* decay;
  float beta;
};
void KeepInputs(const K3Shape& shape, size_t head, const KdaInputs& in, float* row);

// Takes the matrix [D][D] of a head through the first `tokens` rows, at least one. `to` may be
// `from`.
void ReplayMatrix(const K3Shape& shape, const float* rows, size_t tokens, size_t head,
                  const float* from, float* to);
// Takes channels [begin, end) of the convolution window of q, k or v (part 0, 1, 2) through them.
void ReplayWindow(const K3Shape& shape, const float* rows, size_t tokens, size_t part, size_t begin,
                  size_t end, float* window);

}  // namespace mk::k3
