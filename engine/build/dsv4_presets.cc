#include "engine/build/dsv4_presets.h"

#include <optional>
#include <utility>

namespace mk {
namespace {

using nlohmann::ordered_json;

// Two layers without compression, then 4 and `plain` in turn, and three zeros for draft blocks.
ordered_json Ratios(int layers, int plain) {
  ordered_json ratios = ordered_json::array();
  for (int l = 0; l < layers; ++l) ratios.push_back(l < 2 ? 0 : l % 2 == 0 ? 4 : plain);
  for (int draft = 0; draft < 3; ++draft) ratios.push_back(0);
  return ratios;
}

ordered_json Nano() {
  return {{"n_layers", 8},
          {"hidden", 512},
          {"vocab", 8200},
          {"n_heads", 8},
          {"head_dim", 128},
          {"qk_rope_head_dim", 64},
          {"q_lora_rank", 128},
          {"o_lora_rank", 128},
          {"o_groups", 8},
          {"sliding_window", 128},
          {"compress_ratios", Ratios(8, 128)},
          {"rope_theta", 10000},
          {"compress_rope_theta", 160000},
          {"index_n_heads", 8},
          {"index_head_dim", 128},
          {"index_topk", 64},
          {"n_routed_experts", 256},
          {"num_experts_per_tok", 6},
          {"moe_intermediate_size", 64},
          {"num_hash_layers", 3},
          {"routed_scaling_factor", 1.5},
          {"swiglu_limit", 10},
          {"rms_norm_eps", 1e-6},
          {"hc_mult", 4},
          {"hc_sinkhorn_iters", 20},
          {"hc_eps", 1e-6},
          {"yarn_factor", 16},
          {"yarn_beta_fast", 32},
          {"yarn_beta_slow", 1},
          {"yarn_orig_seq_len", 65536},
          {"max_seq_len", 1048576}};
}

ordered_json With(ordered_json base, const ordered_json& changes) {
  base.update(changes);
  return base;
}

// Short windows and groups, so that every branch runs within twenty tokens.
ordered_json Tiny() {
  return With(Nano(), {{"n_layers", 6},
                       {"hidden", 64},
                       {"vocab", 264},
                       {"n_heads", 4},
                       {"head_dim", 48},
                       {"qk_rope_head_dim", 16},
                       {"q_lora_rank", 32},
                       {"o_lora_rank", 16},
                       {"o_groups", 2},
                       {"sliding_window", 8},
                       {"compress_ratios", Ratios(6, 8)},
                       {"index_n_heads", 2},
                       {"index_head_dim", 32},
                       {"index_topk", 4},
                       {"n_routed_experts", 16},
                       {"num_experts_per_tok", 2},
                       {"moe_intermediate_size", 32},
                       {"num_hash_layers", 2}});
}

ordered_json Micro() {
  return With(Nano(), {{"n_layers", 43},
                       {"vocab", 129280},
                       {"compress_ratios", Ratios(43, 128)},
                       {"moe_intermediate_size", 128}});
}

// Real widths, few layers and experts: for kernels and streaming.
ordered_json Wide() {
  return With(Nano(), {{"n_layers", 4},
                       {"hidden", 4096},
                       {"n_heads", 64},
                       {"head_dim", 512},
                       {"q_lora_rank", 1024},
                       {"o_lora_rank", 1024},
                       {"compress_ratios", Ratios(4, 128)},
                       {"index_n_heads", 64},
                       {"index_topk", 512},
                       {"n_routed_experts", 16},
                       {"moe_intermediate_size", 2048},
                       {"num_hash_layers", 1}});
}

std::optional<ordered_json> Preset(const std::string& name) {
  if (name == "tiny") return Tiny();
  if (name == "nano") return Nano();
  if (name == "micro") return Micro();
  if (name == "dsv4-wide") return Wide();
  return std::nullopt;
}

}  // namespace

const std::vector<GainKey<Dsv4Gains>>& Dsv4GainKeys() {
  constexpr double kTiny = 1e-6;
  static const std::vector<GainKey<Dsv4Gains>> keys = {
      {"embed_sd", &Dsv4Gains::embed, 0},
      {"g_lm", &Dsv4Gains::head, kTiny},
      {"norm_sd", &Dsv4Gains::norm, 0},
      {"g_hc", &Dsv4Gains::mixer, 0},
      {"hc_base_sd", &Dsv4Gains::mixer_base, 0},
      {"g_attn", &Dsv4Gains::attention, 0},
      {"ape_sd", &Dsv4Gains::slot, 0},
      {"sink_sd", &Dsv4Gains::sink, 0},
      {"g_router", &Dsv4Gains::router, 0},
      {"skew", &Dsv4Gains::skew, 0},
      {"g_mlp", &Dsv4Gains::mlp, 0},
      {"g_expert", &Dsv4Gains::expert, kTiny},
      {"g_out", &Dsv4Gains::output, kTiny},
  };
  return keys;
}

std::vector<std::string> Dsv4PresetNames() {
  return {"tiny", "nano", "micro", "dsv4-wide"};
}

Result<Dsv4Recipe> MakeDsv4Recipe(const std::string& preset, const Overrides& overrides) {
  std::optional<ordered_json> dimensions = Preset(preset);
  if (!dimensions) {
    return Fail(ErrorCode::kInvalidArgument, "unknown preset \"" + preset + "\" of arch dsv4",
                "presets: tiny, nano, micro, dsv4-wide");
  }
  Dsv4Recipe recipe{std::move(*dimensions), {}};
  if (Status done = Override(overrides, Dsv4GainKeys(), {"act_qat"}, recipe); !done) {
    return Fail(done.error());
  }
  return recipe;
}

}  // namespace mk
