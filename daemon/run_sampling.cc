#include "daemon/run_sampling.h"

#include <algorithm>
#include <random>
#include <utility>

#include "daemon/errors.h"
#include "daemon/run_task.h"
#include "daemon/token_text.h"
#include "engine/sampling/log_probs.h"

namespace mk::daemon {
namespace {

// Below 2^53, which every reader of JSON keeps as it is.
uint64_t RandomSeed() {
  std::random_device device;
  return ((static_cast<uint64_t>(device()) << 32) | device()) >> 11;
}

protocol::Result<int32_t> OnlyToken(const Tokenizer& tokenizer, const std::string& text) {
  auto encoded = tokenizer.EncodeText(text);
  if (!encoded) return protocol::Fail(ToProtocol(encoded.error()));
  if (encoded->ids.size() == 1 && encoded->unknown == 0) return encoded->ids.front();
  const bool unknown = encoded->unknown > 0;
  const std::string what = unknown ? "text that the vocabulary cannot spell"
                                   : std::to_string(encoded->ids.size()) + " tokens";
  return protocol::Fail(protocol::ErrorCode::kBadRequest,
                        "`ban_text`: \"" + text + "\" is " + what + ", not one token",
                        unknown ? "the model cannot say it in any case"
                                : "mk tokenize shows them; ban one of them by its id, or end the "
                                  "answer at the text with stop",
                        {{"field", "ban_text"}});
}

protocol::Status SettleBans(protocol::RunArgs& args, const LoadedModel& loaded) {
  if (args.ban_text.empty()) return {};
  if (loaded.tokenizer == nullptr) {
    return protocol::Fail(NoTokenizer(loaded));
  }
  for (const std::string& text : args.ban_text) {
    auto id = OnlyToken(*loaded.tokenizer, text);
    if (!id) return protocol::Fail(std::move(id.error()));
    args.processing.ban.push_back(*id);
  }
  args.ban_text.clear();
  return {};
}

// Tokens with one of the texts in them, and those that are no text at all.
std::shared_ptr<const std::vector<bool>> FindBreakers(const Tokenizer& tokenizer,
                                                      const std::vector<std::string>& texts) {
  std::vector<bool> breakers(tokenizer.vocab_size());
  for (size_t i = 0; i < breakers.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string_view bytes = tokenizer.TokenBytes(id);
    breakers[i] = bytes.empty() || std::any_of(texts.begin(), texts.end(), [&](const auto& text) {
                    return bytes.find(text) != std::string_view::npos;
                  });
  }
  return std::make_shared<const std::vector<bool>>(std::move(breakers));
}

ProcessingOptions ProcessingOf(const protocol::ProcessingOptions& asked,
                               const Tokenizer* tokenizer) {
  ProcessingOptions options;
  for (const protocol::TokenBias& entry : asked.logit_bias) {
    options.biases.push_back({entry.id, static_cast<float>(entry.bias)});
  }
  options.banned = asked.ban;
  DryOptions& dry = options.dry;
  dry.multiplier = static_cast<float>(asked.dry_multiplier);
  dry.base = static_cast<float>(asked.dry_base);
  dry.allowed_length = asked.dry_allowed_length;
  dry.range = asked.dry_range;
  dry.prompt = asked.dry_prompt;
  if (dry.any() && tokenizer != nullptr)
    dry.breakers = FindBreakers(*tokenizer, asked.dry_breakers);
  options.dry_compat = static_cast<float>(asked.dry_compat);
  PenaltyOptions& penalties = options.penalties;
  penalties.repetition = static_cast<float>(asked.repetition_penalty);
  penalties.frequency = static_cast<float>(asked.frequency_penalty);
  penalties.presence = static_cast<float>(asked.presence_penalty);
  penalties.window = asked.penalty_window;
  penalties.prompt = asked.penalty_prompt;
  return options;
}

}  // namespace

protocol::Result<SamplingOptions> SettleSampling(protocol::RunArgs& args,
                                                 const LoadedModel& loaded) {
  if (!args.seed) args.seed = RandomSeed();
  if (auto settled = SettleBans(args, loaded); !settled) return protocol::Fail(settled.error());
  SamplingOptions sampling;
  sampling.temperature = static_cast<float>(args.temperature);
  sampling.top_p = static_cast<float>(args.top_p);
  sampling.top_k = args.top_k;
  sampling.min_p = static_cast<float>(args.min_p);
  sampling.typical_p = static_cast<float>(args.processing.typical_p);
  sampling.seed = *args.seed;
  sampling.processing = ProcessingOf(args.processing, loaded.tokenizer.get());
  for (const Status& good : {ValidateSampling(sampling),
                             ValidateTokens(sampling.processing, loaded.model->info().vocab)}) {
    if (!good) return protocol::Fail(ToProtocol(good.error()));
  }
  return sampling;
}

void TellSampling(const protocol::RunArgs& args, protocol::RunOptions& options) {
  options.temperature = args.temperature;
  options.top_p = args.top_p;
  options.top_k = args.top_k;
  options.min_p = args.min_p;
  options.processing = args.processing;
  options.seed = args.seed.value_or(0);
}

void AddLogProbs(std::span<const float> logits, uint32_t alternatives, const Tokenizer* tokenizer,
                 protocol::TokenChunk& chunk) {
  const Result<double> log_sum = LogSumExp(logits);
  if (!log_sum) return;  // nothing is chosen from such a row
  chunk.logprob = static_cast<double>(logits[static_cast<size_t>(chunk.id)]) - *log_sum;
  if (alternatives == 0) return;
  auto& top = chunk.top.emplace();
  for (const TokenLogProb& entry : LikeliestTokens(logits, *log_sum, alternatives)) {
    top.push_back(
        {entry.id, tokenizer ? TokenText(*tokenizer, entry.id) : std::string(), entry.logprob});
  }
}

}  // namespace mk::daemon
