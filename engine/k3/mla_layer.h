// An MLA layer: latent attention without positions.
//
//   c_q = rms(Wqa x);  [qn_h ; qr_h] = Wqb c_q;  [c ; kappa] = Wkva x, c <- rms(c)
//   score_h(t, u) = (qn_h(t) . U_h c(u) + qr_h(t) . kappa(u)) (n + rho)^-1/2        u <= t
//   o_h = sum_u softmax(score) Z_h c(u);   y = Wo (concat o_h * sigmoid(Wg x))
//
// The cache holds [c ; kappa]. With U_h and Z_h drawn out of the sums all heads share its rows:
// the query becomes [U_h^T qn_h ; qr_h] and o_h = Z_h sum_u p_u c(u). A sequence may instead hold
// expanded rows, U_h c beside kappa and Z_h c for every head.

#pragma once

#include <span>

#include "engine/base/result.h"
#include "engine/k3/batch.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"

namespace mk::k3 {

// Scratch of all MLA layers of a forward pass.
struct MlaScratch {
  MlaScratch(const K3Shape& shape, const Batch& batch);
  bool latent;                   // some sequence holds latent rows
  bool expanded;                 // some sequence holds expanded rows
  float* input;                  // [rows][mla_input_rows]
  Activations query_latent;      // [rows][r_q]
  float* query;                  // [rows][M][n + rho]
  float* latent_rows;            // [rows][r_kv + rho]
  float* absorbed;               // [rows][M][r_kv + rho]; latent only
  Q8Activations absorbed_bytes;  // [rows][M][groups of both parts]; latent and q8 only
  float* mixed;                  // [rows][M][r_kv]: sum of latents; latent only
  float* keys;                   // [rows][M][n]; expanded only
  float* values;                 // [rows][M][v]; expanded only
  Activations output;            // [rows][M][v]
};

// x [rows][d], normalised; writes the attention output to y [rows][d] and appends a row per token
// to the cache of every sequence. `index` counts MLA layers.
Status MlaForward(const K3Shape& shape, const MlaWeights& weights, size_t index, const Batch& batch,
                  const MlaScratch& scratch, const Activations& x, float* y);

}  // namespace mk::k3
