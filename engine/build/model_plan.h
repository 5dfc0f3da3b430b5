// ModelPlan: the config of a model to be built and, tensor by tensor, where its values come from.
// Every architecture makes one; the builder needs to know no more.

#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_writer.h"

namespace mk {

// Near-Gaussian f32 values; elements from `zero_from` on are zero.
struct NormalValues {
  double mean = 0;
  double deviation = 1;
  uint64_t zero_from = std::numeric_limits<uint64_t>::max();
};

// The same with a mean for every element.
struct ShiftedNormalValues {
  std::vector<float> means;
  double deviation = 1;
};

// Evenly spaced f32 values.
struct GridValues {
  double begin = 0;
  double end = 1;
};

// An MXFP4 expert matrix in coded form.
struct CodedExpertValues {
  double gain = 1;
};

// Integers [R, K]: in every row K different ones of [0, range).
struct PermutationValues {
  uint32_t range = 1;
};

using Distribution = std::variant<NormalValues, ShiftedNormalValues, GridValues, CodedExpertValues,
                                  PermutationValues>;

struct ModelPlan {
  std::string config_json;
  std::vector<TensorSpec> tensors;
  std::vector<Distribution> values;  // one per tensor

  void Add(std::string name, DType dtype, std::vector<uint32_t> dims, Distribution distribution) {
    tensors.push_back({std::move(name), dtype, std::move(dims)});
    values.push_back(std::move(distribution));
  }
};

using Overrides = std::vector<std::pair<std::string, std::string>>;  // key, JSON value

}  // namespace mk
