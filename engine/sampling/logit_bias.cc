#include "engine/sampling/logit_bias.h"

#include <limits>
#include <utility>

namespace mk {

LogitBias::LogitBias(std::vector<TokenBias> biases, std::vector<int32_t> banned)
    : biases_(std::move(biases)), banned_(std::move(banned)) {}

void LogitBias::Apply(std::span<const int32_t> /*emitted*/, std::span<float> logits) {
  for (const TokenBias& entry : biases_) logits[static_cast<size_t>(entry.id)] += entry.bias;
  for (const int32_t id : banned_) {
    logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace mk
