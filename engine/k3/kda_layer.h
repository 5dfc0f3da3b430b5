// A KDA layer: gated delta attention over a recurrent state.

#pragma once

#include <span>

#include "engine/base/result.h"
#include "engine/k3/batch.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"

namespace mk::k3 {

// Scratch of all KDA layers of a forward pass.
struct KdaScratch {
  KdaScratch(const K3Shape& shape, const Batch& batch);
  float* input;             // [rows][kda_input_rows]
  float* decay;             // [rows][P]
  float* conv;              // [rows][3P]: q, k, v after convolution
  Activations output;       // [rows][P]
  std::span<float> worker;  // [workers][worker_floats]
  size_t worker_floats;
};

// x [rows][d], normalised; writes the attention output to y [rows][d] and updates the state of
// every sequence. `index` counts KDA layers.
Status KdaForward(const K3Shape& shape, const KdaWeights& weights, size_t index, const Batch& batch,
                  const KdaScratch& scratch, const Activations& x, float* y);

}  // namespace mk::k3
