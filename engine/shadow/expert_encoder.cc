#include "engine/shadow/expert_encoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/format/vq1.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/kernels/vq1_search.h"

namespace mk {
namespace {

double SumOfSquares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

}  // namespace

Result<ExpertEncoder> ExpertEncoder::Create(std::span<const float> codebooks, size_t stages) {
  Result<PageBuffer> complete = PageBuffer::Allocate(stages * kVq1CodebookFloats * sizeof(float));
  if (!complete) return Fail(complete.error());
  for (size_t s = 0; s < stages; ++s) {
    float* own = complete->floats().data() + s * kVq1CodebookFloats;
    std::ranges::copy(codebooks.subspan(s * kVq1CodebookSize, kVq1CodebookSize), own);
    CompleteVq1Codebook(own);
  }
  return ExpertEncoder(std::move(*complete), stages);
}

Energies ExpertEncoder::Encode(Buffers& buffers, std::span<std::byte> out) const {
  const size_t groups = buffers.values.size() / kVq1Group;
  Energies energies;
  energies.weights = SumOfSquares(buffers.values);
  buffers.nearest.resize(groups);
  for (size_t s = 0; s < stages_; ++s) {
    const std::span<const float> codebook =
        codebooks_.floats().subspan(s * kVq1CodebookFloats, kVq1CodebookFloats);
    FindNearestVq1(codebook.data(), buffers.values.data(), groups, buffers.nearest.data(), nullptr);
    SubtractEntries(codebook.first(kVq1CodebookSize), buffers.nearest, buffers.values);
    for (size_t g = 0; g < groups; ++g) {
      out[g * stages_ + s] = static_cast<std::byte>(buffers.nearest[g]);
    }
  }
  energies.rest = SumOfSquares(buffers.values);
  energies.shadows = ShadowEnergy(out);
  return energies;
}

double ExpertEncoder::ShadowEnergy(std::span<const std::byte> bytes) const {
  double energy = 0;
  for (size_t first = 0; first < bytes.size(); first += stages_) {
    for (size_t j = 0; j < kVq1Group; ++j) {
      double value = 0;
      for (size_t s = 0; s < stages_; ++s) {
        const auto entry = std::to_integer<size_t>(bytes[first + s]);
        value += static_cast<double>(
            codebooks_.floats()[s * kVq1CodebookFloats + entry * kVq1Group + j]);
      }
      energy += value * value;
    }
  }
  return energy;
}

void SubtractEntries(std::span<const float> entries, std::span<const uint8_t> nearest,
                     std::span<float> values) {
  for (size_t g = 0; g < nearest.size(); ++g) {
    for (size_t j = 0; j < kVq1Group; ++j) {
      values[g * kVq1Group + j] -= entries[size_t{nearest[g]} * kVq1Group + j];
    }
  }
}

}  // namespace mk
