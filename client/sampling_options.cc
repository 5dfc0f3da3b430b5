#include "client/sampling_options.h"

#include <charconv>
#include <cmath>

#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;
using protocol::Status;

template <typename T>
bool ParseAll(std::string_view text, T& value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

Result<int32_t> ParseId(const std::string& option, std::string_view text) {
  int32_t id = 0;
  if (ParseAll(text, id) && id >= 0) return id;
  return Fail(UsageError(option + ": \"" + std::string(text) + "\" is no token id",
                         "mk tokenize shows the ids of a text"));
}

Result<protocol::TokenBias> ParseBias(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) {
    return Fail(UsageError("--logit-bias: \"" + text + "\" is not ID=BIAS",
                           "for example --logit-bias 42=-1.5"));
  }
  auto id = ParseId("--logit-bias", std::string_view(text).substr(0, equals));
  if (!id) return Fail(std::move(id.error()));
  protocol::TokenBias bias{*id, 0};
  if (!ParseAll(std::string_view(text).substr(equals + 1), bias.bias) ||
      !(std::abs(bias.bias) <= 100)) {
    return Fail(UsageError(
        "--logit-bias: \"" + text.substr(equals + 1) + "\" is not a number from -100 to 100",
        "-100 makes a token all but impossible, --ban impossible"));
  }
  return bias;
}

}  // namespace

void SamplingOptions::AddPenalties(CommandLine& line, protocol::ProcessingOptions& processing) {
  line.AddReal("--repetition-penalty", processing.repetition_penalty,
               "Divide the logits of tokens that came before (multiply, below 0); 1: off",
               {0.1, 10});
  line.AddReal("--frequency-penalty", processing.frequency_penalty,
               "Take this off a token's logit for every time that it came before", {-2, 2});
  line.AddReal("--presence-penalty", processing.presence_penalty,
               "Take this off the logits of tokens that came before", {-2, 2});
  line.AddNumber("--penalty-window", penalty_window_,
                 "Tokens that the three penalties look back upon (0: the whole answer)", 0,
                 1 << 20);
  line.app().add_flag("--penalty-prompt", processing.penalty_prompt,
                      "Let tokens of the prompt count for the three penalties too");
}

void SamplingOptions::AddDry(CommandLine& line, protocol::ProcessingOptions& processing) {
  CLI::App& app = line.app();
  line.AddReal("--dry-multiplier", processing.dry_multiplier,
               "Penalty on tokens that would go on a repeat (DRY); 0: off, 0.8 is usual", {0, 100});
  line.AddReal("--dry-base", processing.dry_base,
               "How fast the penalty grows with the length of the repeat (default 1.75)", {1, 10});
  line.AddNumber("--dry-allowed-length", dry_allowed_length_,
                 "Tokens from which on a repeat is penalised (default 2)", 1, 1024);
  line.AddNumber("--dry-range", dry_range_, "Tokens that repeats are looked for in (default 1024)",
                 1, 65536);
  app.add_flag("--no-dry-prompt", no_dry_prompt_, "Look for repeats of the answer alone");
  line.AddRepeated("--dry-breaker", breakers_,
                   "Text whose tokens end what is one repeat; may be given several times, and "
                   "replaces the usual newline, colon, quote and star")
      ->type_name("TEXT");
  app.add_flag("--no-dry-breakers", no_breakers_, "Let repeats go across any text");
  line.AddReal("--dry-compat", processing.dry_compat,
               "Strength of the reference engine's DRY, for comparisons; 0: off", {0, 100});
}

void SamplingOptions::Add(CommandLine& line, protocol::RunArgs& args) {
  line.AddReal("--typical-p", args.processing.typical_p,
               "Sample from the tokens of most typical probability that have this share",
               {0, 1, true});
  line.AddRepeated("--logit-bias", biases_,
                   "Add a number to the logit of a token; may be given several times")
      ->type_name("ID=BIAS");
  line.AddRepeated("--ban", banned_, "Token that must not come; may be given several times")
      ->type_name("ID");
  line.AddRepeated("--ban-text", args.ban_text,
                   "The same by its text, which must be exactly one token")
      ->type_name("TEXT");
  AddPenalties(line, args.processing);
  AddDry(line, args.processing);
}

Status SamplingOptions::Take(protocol::RunArgs& args) const {
  protocol::ProcessingOptions& processing = args.processing;
  for (const std::string& text : biases_) {
    auto bias = ParseBias(text);
    if (!bias) return Fail(std::move(bias.error()));
    processing.logit_bias.push_back(*bias);
  }
  for (const std::string& text : banned_) {
    auto id = ParseId("--ban", text);
    if (!id) return Fail(std::move(id.error()));
    processing.ban.push_back(*id);
  }
  if (no_breakers_ && !breakers_.empty()) {
    return Fail(UsageError("--no-dry-breakers excludes --dry-breaker", "leave out one of them"));
  }
  if (no_breakers_ || !breakers_.empty()) processing.dry_breakers = breakers_;
  if (no_dry_prompt_) processing.dry_prompt = false;
  processing.penalty_window = static_cast<uint32_t>(penalty_window_);
  if (dry_range_ > 0) processing.dry_range = static_cast<uint32_t>(dry_range_);
  if (dry_allowed_length_ > 0) {
    processing.dry_allowed_length = static_cast<uint32_t>(dry_allowed_length_);
  }
  return {};
}

}  // namespace mk::client
