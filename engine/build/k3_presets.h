// Dimensions and gains of the K3 presets, and the overrides of both.

#pragma once

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/build/model_plan.h"
#include "engine/build/recipe.h"

namespace mk {

// Standard deviations and gains of the distributions. A matrix [R,C] of gain g has deviation
// g/sqrt(C), so that an input of unit RMS gives an output of RMS g.
struct K3Gains {
  double embed = 1;     // deviation of the embedding
  double head = 0;      // gain of the head = standard deviation of the logits; 0: by vocab
  double norm = 0.2;    // deviation of every norm vector around 1
  double residual = 1;  // gain of the residual projections
  double kda = 1;       // gain of the KDA projections
  double conv = 0.5;    // deviation of the convolution taps
  double a_log_max = 2.772588722239781;  // A_log runs from 0 to this: ln 16
  double dt_mean = -0.5;                 // dt_bias
  double dt = 0.3;
  double mla = 1;      // gain of q_a, kv_a, g, o
  double mla_b = 1.5;  // gain of q_b, kv_b
  double router = 1;   // gain of the router
  double skew = 0.06;  // deviation of the router's selection bias: how uneven experts are used
  double mlp = 1;      // gain of latent, shared and dense matrices
  double expert = 1;   // gain of the routed experts
};

using K3Recipe = Recipe<K3Gains>;

const std::vector<GainKey<K3Gains>>& K3GainKeys();
std::vector<std::string> K3PresetNames();

// The preset with `overrides` applied. Values of dimensions are checked later, with the config.
Result<K3Recipe> MakeK3Recipe(const std::string& preset, const Overrides& overrides);

}  // namespace mk
