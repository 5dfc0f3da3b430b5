// TensorList: adds tensors to a plan under a prefix.

#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/build/model_plan.h"

namespace mk {

class TensorList {
 public:
  explicit TensorList(ModelPlan& plan) : plan_(plan) {}
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }

  void Vector(const char* name, uint32_t size, double mean, double deviation) {
    plan_.Add(prefix_ + name, DType::kF32, {size}, NormalValues{mean, deviation});
  }
  // An input of unit RMS gives an output of RMS `gain`.
  void Matrix(const char* name, uint32_t rows, uint32_t cols, double gain) {
    plan_.Add(prefix_ + name, DType::kF32, {rows, cols}, NormalValues{0, PerColumn(gain, cols)});
  }
  void Add(const char* name, std::vector<uint32_t> dims, Distribution values,
           DType dtype = DType::kF32) {
    plan_.Add(prefix_ + name, dtype, std::move(dims), std::move(values));
  }
  void Coded(const char* name, uint32_t rows, uint32_t cols, double gain) {
    plan_.Add(prefix_ + name, DType::kMxfp4, {rows, cols}, CodedExpertValues{gain});
  }
  static double PerColumn(double gain, uint32_t cols) {
    return gain / std::sqrt(static_cast<double>(cols));
  }

 private:
  ModelPlan& plan_;
  std::string prefix_;
};

// Gain of the head by the size of the vocabulary: the standard deviation of the logits.
inline double DefaultHeadGain(uint32_t vocab) {
  if (vocab < 1024) return 2;
  return vocab < 32768 ? 3 : 4;
}

}  // namespace mk
