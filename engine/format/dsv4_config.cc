#include "engine/format/dsv4_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/format/config_limits.h"
#include "engine/format/dsv4_config_reader.h"

namespace mk {
namespace {

using nlohmann::json;

constexpr uint32_t kMaxStreams = 16;
constexpr uint32_t kMaxIterations = 1000;
constexpr uint32_t kMaxRatio = 1u << 16;
constexpr uint32_t kMaxGroupRows = 1u << 24;

// An integer of the config: its key, where it goes, its range.
template <typename Owner>
struct Number {
  const char* key;
  uint32_t Owner::*field;
  uint32_t min;
  uint32_t max;
};

constexpr std::array<Number<MkimConfig>, 6> kShared = {{
    {"n_layers", &MkimConfig::n_layers, 1, kMaxLayers},
    {"hidden", &MkimConfig::hidden, 1, kMaxWidth},
    {"vocab", &MkimConfig::vocab, 1, kMaxVocab},
    {"n_routed_experts", &MkimConfig::n_experts, 1, kMaxExperts},
    {"num_experts_per_tok", &MkimConfig::top_k, 1, kMaxExperts},
    {"moe_intermediate_size", &MkimConfig::moe_inter, 1, kMaxWidth},
}};

constexpr std::array<Number<DeepSeekConfig>, 11> kDimensions = {{
    {"n_heads", &DeepSeekConfig::n_heads, 1, kMaxHeads},
    {"head_dim", &DeepSeekConfig::head_dim, 2, kMaxHeads},
    {"qk_rope_head_dim", &DeepSeekConfig::rope_dim, 2, kMaxHeads},
    {"q_lora_rank", &DeepSeekConfig::q_lora_rank, 1, kMaxWidth},
    {"o_lora_rank", &DeepSeekConfig::o_lora_rank, 1, kMaxWidth},
    {"o_groups", &DeepSeekConfig::o_groups, 1, kMaxHeads},
    {"sliding_window", &DeepSeekConfig::sliding_window, 1, kMaxWidth},
    {"index_n_heads", &DeepSeekConfig::index_n_heads, 1, kMaxHeads},
    {"index_head_dim", &DeepSeekConfig::index_head_dim, 32, kMaxHeads},
    {"index_topk", &DeepSeekConfig::index_topk, 1, kMaxVocab},
    {"num_hash_layers", &DeepSeekConfig::n_hash_layers, 0, kMaxLayers},
}};

// Constants of the published model, which older files leave out.
constexpr std::array<Number<DeepSeekConfig>, 4> kConstants = {{
    {"hc_mult", &DeepSeekConfig::hc_mult, 1, kMaxStreams},
    {"hc_sinkhorn_iters", &DeepSeekConfig::hc_sinkhorn_iters, 1, kMaxIterations},
    {"yarn_orig_seq_len", &DeepSeekConfig::yarn_orig_seq_len, 1, 1u << 30},
    {"max_seq_len", &DeepSeekConfig::max_seq_len, 1, 1u << 30},
}};

constexpr auto kPositive = +[](float x) { return x > 0; };
constexpr auto kAboveOne = +[](float x) { return x > 1; };
constexpr auto kAny = +[](float) { return true; };
constexpr const char* kPositiveRule = "must be a finite number above 0";

// Keys that are no integers.
constexpr std::array<std::string_view, 11> kOtherKeys = {"compress_ratios",
                                                         "rope_theta",
                                                         "compress_rope_theta",
                                                         "yarn_factor",
                                                         "yarn_beta_fast",
                                                         "yarn_beta_slow",
                                                         "routed_scaling_factor",
                                                         "swiglu_limit",
                                                         "rms_norm_eps",
                                                         "hc_eps",
                                                         "act_qat"};

class Reader {
 public:
  Reader(ConfigReader& top, ConfigReader& inner, const ConfigOptions& options, MkimConfig& config)
      : top_(top), in_(inner), options_(options), config_(config), ds_(config.ds) {}

  void Read(const std::string& what, std::vector<std::string>& warnings) {
    for (const auto& number : kShared) ReadShared(number);
    for (const auto& number : kDimensions) {
      if (!in_.Integer(number.key, number.min, number.max, ds_.*number.field)) {
        Missing(number.key, ds_.*number.field);
      }
    }
    if (!in_.Has("num_hash_layers")) {
      ds_.n_hash_layers = std::min(ds_.n_hash_layers, config_.n_layers);
    }
    for (const auto& number : kConstants) {
      in_.Integer(number.key, number.min, number.max, ds_.*number.field);
    }
    ReadFloats();
    in_.Boolean("act_qat", ds_.act_qat);
    ReadRatios(what, warnings);
    if (!defaulted_.empty()) {
      warnings.push_back(what + ": keys are missing and taken as " + defaulted_);
    }
    if (in_.status()) Check();
  }

 private:
  // A key that may stand at top level, in "ds" or in both, with one value.
  void ReadShared(const Number<MkimConfig>& number) {
    uint32_t& field = config_.*number.field;
    uint32_t outer = 0;
    const bool is_outer =
        top_.Has(number.key) && top_.Integer(number.key, number.min, number.max, outer);
    const bool is_inner = in_.Integer(number.key, number.min, number.max, field);
    if (is_outer && is_inner && outer != field) {
      in_.Refuse("key \"" + std::string(number.key) + "\" is " + std::to_string(outer) +
                 " at top level and " + std::to_string(field) + " in \"ds\"");
    }
    if (is_outer && !is_inner) field = outer;
    if (!is_outer && !is_inner) Missing(number.key, field);
  }

  void Missing(const char* key, uint32_t taken) {
    if (!in_.status() || !top_.status()) return;
    if (options_.require_all_dimensions) {
      in_.Refuse("key \"" + in_.prefix() + key + "\" is missing");
      return;
    }
    if (!defaulted_.empty()) defaulted_ += ", ";
    defaulted_ += std::string(key) + " = " + std::to_string(taken);
  }

  void ReadFloats() {
    in_.Float("rms_norm_eps", kPositive, kPositiveRule, config_.rms_eps);
    in_.Float("routed_scaling_factor", kPositive, kPositiveRule, config_.routed_scale);
    in_.Float("hc_eps", kPositive, kPositiveRule, ds_.hc_eps);
    in_.Float("swiglu_limit", kAny, "must be a finite number", ds_.swiglu_limit);
    const char* const above_one = "must be a finite number above 1";
    in_.Float("rope_theta", kAboveOne, above_one, ds_.rope_theta);
    in_.Float("compress_rope_theta", kAboveOne, above_one, ds_.compress_rope_theta);
    in_.Float("yarn_factor", kPositive, kPositiveRule, ds_.yarn_factor);
    in_.Float("yarn_beta_fast", kPositive, kPositiveRule, ds_.yarn_beta_fast);
    in_.Float("yarn_beta_slow", kPositive, kPositiveRule, ds_.yarn_beta_slow);
  }

  void ReadRatios(const std::string& what, std::vector<std::string>& warnings) {
    const uint32_t layers = config_.n_layers;
    if (!in_.Integers("compress_ratios", 0, kMaxRatio, ds_.compress_ratios)) {
      ds_.compress_ratios.clear();
      for (uint32_t l = 0; l < layers; ++l) {
        const uint32_t alternating = l % 2 == 0 ? kIndexedRatio : 128;
        ds_.compress_ratios.push_back(l < 2 || l >= 43 ? 0 : alternating);
      }
      return;
    }
    if (ds_.compress_ratios.size() < layers) {
      warnings.push_back(what + ": compress_ratios has " +
                         std::to_string(ds_.compress_ratios.size()) + " entries for " +
                         std::to_string(layers) + " layers, the rest is taken as 0");
    }
    // What follows belongs to draft blocks.
    ds_.compress_ratios.resize(layers, 0);
    for (const uint32_t ratio : ds_.compress_ratios) {
      if (ratio == 1) in_.Refuse("compress_ratios has a 1, an entry is 0 or at least 2");
    }
  }

  void Require(bool good, const std::string& problem) {
    if (!good) in_.Refuse(problem);
  }

  void Check() {
    const auto text = [](uint32_t value) { return std::to_string(value); };
    Require(config_.top_k <= config_.n_experts, "num_experts_per_tok " + text(config_.top_k) +
                                                    " exceeds n_routed_experts " +
                                                    text(config_.n_experts));
    Require(ds_.rope_dim % 2 == 0 && ds_.rope_dim <= ds_.head_dim,
            "qk_rope_head_dim is " + text(ds_.rope_dim) +
                ", it must be even and at most head_dim " + text(ds_.head_dim));
    Require(ds_.n_heads % ds_.o_groups == 0,
            "o_groups " + text(ds_.o_groups) + " does not divide n_heads " + text(ds_.n_heads));
    Require(uint64_t{ds_.o_groups} * ds_.o_lora_rank <= kMaxGroupRows,
            "o_groups times o_lora_rank is " +
                std::to_string(uint64_t{ds_.o_groups} * ds_.o_lora_rank) + ", at most " +
                text(kMaxGroupRows) + " are possible");
    Require(std::has_single_bit(ds_.index_head_dim) && ds_.index_head_dim >= ds_.rope_dim,
            "index_head_dim is " + text(ds_.index_head_dim) +
                ", it must be a power of two and at least qk_rope_head_dim " + text(ds_.rope_dim));
    Require(config_.hidden % 32 == 0,
            "hidden is " + text(config_.hidden) + ", it must be a multiple of 32");
    Require(config_.moe_inter % 32 == 0, "moe_intermediate_size is " + text(config_.moe_inter) +
                                             ", it must be a multiple of 32");
    Require(ds_.n_hash_layers <= config_.n_layers, "num_hash_layers " + text(ds_.n_hash_layers) +
                                                       " exceeds n_layers " +
                                                       text(config_.n_layers));
  }

  ConfigReader& top_;
  ConfigReader& in_;
  const ConfigOptions& options_;
  MkimConfig& config_;
  DeepSeekConfig& ds_;
  std::string defaulted_;
};

}  // namespace

bool IsDeepSeekKey(std::string_view key) {
  const auto is_key = [key](const auto& number) { return key == number.key; };
  return std::any_of(kShared.begin(), kShared.end(), is_key) ||
         std::any_of(kDimensions.begin(), kDimensions.end(), is_key) ||
         std::any_of(kConstants.begin(), kConstants.end(), is_key) ||
         std::find(kOtherKeys.begin(), kOtherKeys.end(), key) != kOtherKeys.end();
}

void ReadDeepSeekConfig(ConfigReader& top, const std::string& what, const ConfigOptions& options,
                        MkimConfig& config, std::vector<std::string>& warnings) {
  config.n_layers = 43;
  config.hidden = 512;
  config.vocab = 129280;
  config.n_experts = 256;
  config.top_k = 6;
  config.moe_inter = 128;
  config.rms_eps = 1e-6f;
  config.routed_scale = 1.5f;
  config.specials = SpecialIds{.bos = 0, .end_of_msg = 1};
  const json* ds = nullptr;
  if (top.Object("ds", ds)) {
    ConfigReader inner(*ds, what, "ds.");
    Reader(top, inner, options, config).Read(what, warnings);
    top.Merge(inner);
    for (auto it = ds->begin(); it != ds->end(); ++it) {
      if (IsDeepSeekKey(it.key())) continue;
      warnings.push_back(what + ": unknown key \"ds." + it.key().substr(0, 64) + "\" is ignored");
    }
  } else if (top.status() && top.Has("n_routed_experts")) {
    Reader(top, top, options, config).Read(what, warnings);
  } else {
    top.Refuse("object \"ds\" with the DeepSeek-V4 dimensions is missing");
  }
}

}  // namespace mk
