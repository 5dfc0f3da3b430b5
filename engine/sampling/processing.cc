#include "engine/sampling/processing.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "engine/sampling/dry_compat.h"

namespace mk {
namespace {

// Also false for NaN.
bool In(float value, float low, float high) {
  return value >= low && value <= high;
}

tl::unexpected<Error> Bad(std::string_view what, std::string_view range) {
  return Fail(ErrorCode::kInvalidArgument, std::string(what).append(" must be ").append(range));
}

Status CheckToken(std::string_view what, int32_t id, size_t vocab) {
  if (id >= 0 && static_cast<size_t>(id) < vocab) return {};
  return Fail(ErrorCode::kInvalidArgument,
              std::string(what) + " names token " + std::to_string(id) +
                  ", outside the model's vocabulary of " + std::to_string(vocab),
              "use ids from 0 to " + std::to_string(vocab - 1));
}

Status ValidateDry(const DryOptions& dry) {
  if (!In(dry.multiplier, 0.0f, 100.0f)) return Bad("dry_multiplier", "in [0, 100]");
  if (!In(dry.base, 1.0f, 10.0f)) return Bad("dry_base", "in [1, 10]");
  if (dry.allowed_length < 1 || dry.allowed_length > 1024) {
    return Bad("dry_allowed_length", "in [1, 1024]");
  }
  if (dry.range < 1 || dry.range > 65536) return Bad("dry_range", "in [1, 65536]");
  return {};
}

}  // namespace

Status ValidateProcessing(const ProcessingOptions& options) {
  if (options.biases.size() > kMaxBiases) return Bad("logit_bias", "of 1024 tokens at most");
  if (options.banned.size() > kMaxBanned) return Bad("ban", "of 1024 tokens at most");
  for (const TokenBias& entry : options.biases) {
    if (!In(entry.bias, -100.0f, 100.0f)) return Bad("a bias of logit_bias", "in [-100, 100]");
  }
  if (Status dry = ValidateDry(options.dry); !dry) return dry;
  if (!In(options.dry_compat, 0.0f, 100.0f)) return Bad("dry_compat", "in [0, 100]");
  const PenaltyOptions& penalties = options.penalties;
  if (!In(penalties.repetition, 0.1f, 10.0f)) return Bad("repetition_penalty", "in [0.1, 10]");
  if (!In(penalties.frequency, -2.0f, 2.0f)) return Bad("frequency_penalty", "in [-2, 2]");
  if (!In(penalties.presence, -2.0f, 2.0f)) return Bad("presence_penalty", "in [-2, 2]");
  return {};
}

Status ValidateTokens(const ProcessingOptions& options, size_t vocab) {
  for (const TokenBias& entry : options.biases) {
    if (Status good = CheckToken("logit_bias", entry.id, vocab); !good) return good;
  }
  std::vector<int32_t> banned = options.banned;
  for (const int32_t id : banned) {
    if (Status good = CheckToken("ban", id, vocab); !good) return good;
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  if (banned.size() < vocab) return {};
  return Fail(ErrorCode::kInvalidArgument, "every token of the vocabulary is banned",
              "leave at least one of them");
}

std::vector<std::unique_ptr<LogitProcessor>> MakeProcessors(const ProcessingOptions& options,
                                                            std::span<const int32_t> prompt) {
  std::vector<std::unique_ptr<LogitProcessor>> made;
  if (!options.biases.empty() || !options.banned.empty()) {
    made.push_back(std::make_unique<LogitBias>(options.biases, options.banned));
  }
  if (options.dry.any()) made.push_back(std::make_unique<DryPenalty>(options.dry, prompt));
  if (options.dry_compat > 0.0f) made.push_back(std::make_unique<DryCompat>(options.dry_compat));
  if (options.penalties.any()) {
    made.push_back(std::make_unique<TokenPenalties>(options.penalties, prompt));
  }
  return made;
}

}  // namespace mk
