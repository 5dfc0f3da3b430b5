#include "engine/kernels/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mk {
namespace {

void Turn(const float* cosines, const float* sines, float sign, std::span<float> x) {
  for (size_t i = 0; i < x.size() / 2; ++i) {
    const float s = sign * sines[i];
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * s;
    x[2 * i + 1] = a * s + b * cosines[i];
  }
}

// The index of the pair that makes `turns` turns within the original length.
double PairOfTurns(size_t width, double theta, double original_length, double turns) {
  return static_cast<double>(width) * std::log(original_length / (2 * std::numbers::pi * turns)) /
         (2 * std::log(theta));
}

}  // namespace

std::vector<float> RotaryFrequencies(size_t width, float theta,
                                     const std::optional<YarnScaling>& yarn) {
  std::vector<float> frequencies(width / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    frequencies[i] = 1.0f / static_cast<float>(std::pow(double{theta}, double{exponent}));
  }
  if (!yarn) return frequencies;
  const auto pair = [&](float turns) {
    return PairOfTurns(width, theta, yarn->original_length, turns);
  };
  const auto low = static_cast<float>(std::max(std::floor(pair(yarn->beta_fast)), 0.0));
  const auto high = static_cast<float>(
      std::min(std::ceil(pair(yarn->beta_slow)), static_cast<double>(width) - 1));
  const float span = std::max(high, low + 1) - low;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / span, 0.0f, 1.0f);
    const float mask = 1.0f - ramp;
    frequencies[i] = frequencies[i] / yarn->factor * (1.0f - mask) + frequencies[i] * mask;
  }
  return frequencies;
}

void RotaryAngles(std::span<const float> frequencies, size_t position, std::span<float> out) {
  const size_t pairs = frequencies.size();
  for (size_t i = 0; i < pairs; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    out[i] = static_cast<float>(std::cos(double{angle}));
    out[pairs + i] = static_cast<float>(std::sin(double{angle}));
  }
}

void Rotate(std::span<const float> angles, std::span<float> x) {
  Turn(angles.data(), angles.data() + x.size() / 2, 1.0f, x);
}

void RotateBack(std::span<const float> angles, std::span<float> x) {
  Turn(angles.data(), angles.data() + x.size() / 2, -1.0f, x);
}

}  // namespace mk
