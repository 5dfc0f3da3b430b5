#include "engine/build/k3_presets.h"

#include <optional>
#include <utility>

namespace mk {
namespace {

using nlohmann::ordered_json;

// Keys that are optional in a config and appear only when they are overridden.
const std::vector<std::string>& OptionalKeys() {
  static const std::vector<std::string> keys = {"mla_layers",  "dense_layers", "kda_a_log",
                                                "kda_l2",      "situ_beta",    "situ_linear_beta",
                                                "routed_scale"};
  return keys;
}

ordered_json Nano() {
  return {{"n_layers", 8},
          {"hidden", 512},
          {"vocab", 8200},
          {"n_experts", 896},
          {"top_k", 16},
          {"n_shared", 2},
          {"kda_heads", 4},
          {"kda_dim", 128},
          {"kda_conv", 4},
          {"kda_fa_rank", 128},
          {"gate_lower_bound", -5.0},
          {"mla_heads", 4},
          {"mla_q_lora", 128},
          {"mla_kv_lora", 64},
          {"mla_nope", 128},
          {"mla_rope", 64},
          {"mla_v", 128},
          {"routed_hidden", 128},
          {"moe_inter", 64},
          {"shared_inter", 128},
          {"dense_inter", 2048},
          {"attn_res_block", 4},
          {"first_k_dense", 1},
          {"rms_eps", 1e-5}};
}

ordered_json With(ordered_json base, std::initializer_list<std::pair<const char*, int>> changes) {
  for (const auto& [key, value] : changes) base[key] = value;
  return base;
}

// Every width differs from its neighbours, so that a swapped axis cannot hide.
ordered_json Tiny() {
  return With(Nano(), {{"n_layers", 6},
                       {"hidden", 96},
                       {"vocab", 264},
                       {"n_experts", 32},
                       {"top_k", 4},
                       {"kda_heads", 2},
                       {"kda_dim", 32},
                       {"kda_fa_rank", 16},
                       {"mla_heads", 2},
                       {"mla_q_lora", 40},
                       {"mla_kv_lora", 32},
                       {"mla_nope", 32},
                       {"mla_rope", 32},
                       {"mla_v", 64},
                       {"routed_hidden", 64},
                       {"moe_inter", 32},
                       {"shared_inter", 160},
                       {"dense_inter", 224},
                       {"attn_res_block", 2}});
}

ordered_json Micro() {
  return With(Nano(), {{"n_layers", 93}, {"vocab", 163840}, {"attn_res_block", 12}});
}

// Real widths, few layers and experts: for kernels and streaming.
ordered_json Wide() {
  return With(Nano(), {{"n_layers", 4},
                       {"hidden", 7168},
                       {"n_experts", 16},
                       {"top_k", 4},
                       {"kda_heads", 96},
                       {"mla_heads", 96},
                       {"mla_q_lora", 1536},
                       {"mla_kv_lora", 512},
                       {"routed_hidden", 3584},
                       {"moe_inter", 3072},
                       {"shared_inter", 6144},
                       {"dense_inter", 33792},
                       {"attn_res_block", 2}});
}

// Many experts, unevenly used: for the policy of the expert cache.
ordered_json Cache() {
  return With(Nano(), {{"n_experts", 2048}});
}

std::optional<K3Recipe> Preset(const std::string& name) {
  K3Recipe recipe;
  if (name == "tiny") {
    recipe.dimensions = Tiny();
  } else if (name == "nano") {
    recipe.dimensions = Nano();
  } else if (name == "micro") {
    recipe.dimensions = Micro();
  } else if (name == "k3-wide") {
    recipe.dimensions = Wide();
  } else if (name == "k3-cache") {
    recipe.dimensions = Cache();
    recipe.gains.skew = 0.12;
  } else {
    return std::nullopt;
  }
  return recipe;
}

}  // namespace

const std::vector<GainKey<K3Gains>>& K3GainKeys() {
  constexpr double kTiny = 1e-6;
  static const std::vector<GainKey<K3Gains>> keys = {
      {"embed_sd", &K3Gains::embed, 0},
      {"g_lm", &K3Gains::head, kTiny},
      {"norm_sd", &K3Gains::norm, 0},
      {"g_res", &K3Gains::residual, 0},
      {"g_kda", &K3Gains::kda, 0},
      {"conv_sd", &K3Gains::conv, 0},
      {"a_log_max", &K3Gains::a_log_max, 0},
      {"dt_mean", &K3Gains::dt_mean, -1e6},
      {"dt_sd", &K3Gains::dt, 0},
      {"g_mla", &K3Gains::mla, 0},
      {"g_mla_b", &K3Gains::mla_b, 0},
      {"g_router", &K3Gains::router, 0},
      {"skew", &K3Gains::skew, 0},
      {"g_mlp", &K3Gains::mlp, 0},
      {"g_expert", &K3Gains::expert, kTiny},
  };
  return keys;
}

std::vector<std::string> K3PresetNames() {
  return {"tiny", "nano", "micro", "k3-wide", "k3-cache"};
}

Result<K3Recipe> MakeK3Recipe(const std::string& preset, const Overrides& overrides) {
  std::optional<K3Recipe> recipe = Preset(preset);
  if (!recipe) {
    return Fail(ErrorCode::kInvalidArgument, "unknown preset \"" + preset + "\" of arch k3",
                "presets: tiny, nano, micro, k3-wide, k3-cache");
  }
  if (Status done = Override(overrides, K3GainKeys(), OptionalKeys(), *recipe); !done) {
    return Fail(done.error());
  }
  return std::move(*recipe);
}

}  // namespace mk
