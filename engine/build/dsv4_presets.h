// Dimensions and gains of the DeepSeek-V4 presets, and the overrides of both.

#pragma once

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/build/model_plan.h"
#include "engine/build/recipe.h"

namespace mk {

// Standard deviations and gains of the distributions. A matrix [R,C] of gain g has deviation
// g/sqrt(C), so that an input of unit RMS gives an output of RMS g.
struct Dsv4Gains {
  double embed = 1;         // deviation of the embedding
  double head = 0;          // gain of the head = standard deviation of the logits; 0: by vocab
  double norm = 0.2;        // deviation of every norm vector around 1
  double mixer = 0.5;       // gain of the mixers of the residual streams
  double mixer_base = 0.2;  // deviation of their bases
  double attention = 1;     // gain of the attention's matrices, compressors and indexer
  double slot = 0.1;        // deviation of the compressors' biases by slot
  double sink = 0.5;        // deviation of the sinks
  double router = 1;        // gain of the router
  double skew = 0.1;        // deviation of the router's selection bias: how uneven experts are used
  double mlp = 1;           // gain of the shared expert
  double expert = 1;        // gain of the routed experts
  double output = 1;        // gain of what writes to the residual streams, times the others
};

using Dsv4Recipe = Recipe<Dsv4Gains>;

const std::vector<GainKey<Dsv4Gains>>& Dsv4GainKeys();
std::vector<std::string> Dsv4PresetNames();

// The preset with `overrides` applied: keys of the object "ds" of the config, and gains. Values of
// dimensions are checked later, with the config.
Result<Dsv4Recipe> MakeDsv4Recipe(const std::string& preset, const Overrides& overrides);

}  // namespace mk
