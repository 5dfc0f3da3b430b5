#include "engine/build/k3_plan.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/build/byte_vocab.h"
#include "engine/build/k3_presets.h"
#include "engine/build/tensor_list.h"
#include "engine/format/config.h"

namespace mk {
namespace {

using nlohmann::ordered_json;

class Planner {
 public:
  Planner(const MkimConfig& config, const K3Gains& gains, ModelPlan& plan)
      : c_(config), g_(gains), add_(plan) {}

  // Spine first, then the experts, layer by layer.
  void Run() {
    Globals();
    for (uint32_t l = 0; l < c_.n_layers; ++l) SpineOf(l);
    for (uint32_t l = 0; l < c_.n_layers; ++l) {
      if (!c_.IsDense(l)) ExpertsOf(l);
    }
  }

 private:
  void Globals() {
    add_.SetPrefix("");
    add_.Add("embed_tokens.weight", {c_.vocab, c_.hidden}, NormalValues{0, g_.embed});
    // Rows of special ids are zero, so that a random model does not stop early.
    const uint64_t first_special = FirstSpecialRow(c_.vocab);
    add_.Add("lm_head.weight", {c_.vocab, c_.hidden},
             NormalValues{0, TensorList::PerColumn(g_.head, c_.hidden), first_special * c_.hidden});
    Norm("norm.weight", c_.hidden);
    Norm("output_attn_res_norm.weight", c_.hidden);
    ResidualProjection("output_attn_res_proj.weight");
  }

  void SpineOf(uint32_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    add_.SetPrefix(prefix);
    Norm("input_layernorm.weight", c_.hidden);
    Norm("post_attention_layernorm.weight", c_.hidden);
    Norm("self_attention_res_norm.weight", c_.hidden);
    Norm("mlp_res_norm.weight", c_.hidden);
    ResidualProjection("self_attention_res_proj.weight");
    ResidualProjection("mlp_res_proj.weight");
    add_.SetPrefix(prefix + "self_attn.");
    if (c_.IsMla(layer)) {
      Mla();
    } else {
      Kda();
    }
    if (c_.IsDense(layer)) {
      add_.SetPrefix(prefix + "mlp.");
      Dense();
    } else {
      add_.SetPrefix(prefix + "block_sparse_moe.");
      Moe();
    }
  }

  void Kda() {
    const uint32_t width = c_.kda_width();
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight"}) {
      add_.Matrix(name, width, c_.hidden, g_.kda);
    }
    add_.Matrix("o_proj.weight", c_.hidden, width, g_.kda);
    for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
      add_.Add(name, {width, c_.kda_conv}, NormalValues{0, g_.conv});
    }
    add_.Matrix("f_a_proj.weight", c_.kda_fa_rank, c_.hidden, g_.kda);
    add_.Matrix("f_b_proj.weight", width, c_.kda_fa_rank, g_.kda);
    const bool per_head = c_.kda_a_log == ALogReading::kHead;
    add_.Add("A_log", {per_head ? c_.kda_heads : c_.kda_dim}, GridValues{0, g_.a_log_max});
    add_.Vector("dt_bias", width, g_.dt_mean, g_.dt);
    add_.Matrix("b_proj.weight", c_.kda_heads, c_.hidden, g_.kda);
    Norm("o_norm.weight", c_.kda_dim);
  }

  void Mla() {
    add_.Matrix("q_a_proj.weight", c_.mla_q_lora, c_.hidden, g_.mla);
    Norm("q_a_layernorm.weight", c_.mla_q_lora);
    add_.Matrix("q_b_proj.weight", c_.mla_heads * c_.mla_qk(), c_.mla_q_lora, g_.mla_b);
    add_.Matrix("kv_a_proj_with_mqa.weight", c_.mla_kv_lora + c_.mla_rope, c_.hidden, g_.mla);
    Norm("kv_a_layernorm.weight", c_.mla_kv_lora);
    add_.Matrix("kv_b_proj.weight", c_.mla_heads * (c_.mla_nope + c_.mla_v), c_.mla_kv_lora,
                g_.mla_b);
    add_.Matrix("g_proj.weight", c_.mla_heads * c_.mla_v, c_.hidden, g_.mla);
    add_.Matrix("o_proj.weight", c_.hidden, c_.mla_heads * c_.mla_v, g_.mla);
  }

  void Dense() {
    add_.Matrix("gate_proj.weight", c_.dense_inter, c_.hidden, g_.mlp);
    add_.Matrix("up_proj.weight", c_.dense_inter, c_.hidden, g_.mlp);
    add_.Matrix("down_proj.weight", c_.hidden, c_.dense_inter, g_.mlp);
  }

  void Moe() {
    add_.Matrix("gate.weight", c_.n_experts, c_.hidden, g_.router);
    add_.Vector("gate.e_score_correction_bias", c_.n_experts, 0, g_.skew);
    add_.Matrix("routed_expert_down_proj.weight", c_.routed_hidden, c_.hidden, g_.mlp);
    add_.Matrix("routed_expert_up_proj.weight", c_.hidden, c_.routed_hidden, g_.mlp);
    Norm("routed_expert_norm.weight", c_.routed_hidden);
    add_.Matrix("shared_experts.gate_proj.weight", c_.shared_inter, c_.hidden, g_.mlp);
    add_.Matrix("shared_experts.up_proj.weight", c_.shared_inter, c_.hidden, g_.mlp);
    add_.Matrix("shared_experts.down_proj.weight", c_.hidden, c_.shared_inter, g_.mlp);
  }

  void ExpertsOf(uint32_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".block_sparse_moe.experts.";
    for (uint32_t e = 0; e < c_.n_experts; ++e) {
      add_.SetPrefix(prefix + std::to_string(e) + ".");
      add_.Coded("w1", c_.moe_inter, c_.routed_hidden, g_.expert);
      add_.Coded("w2", c_.routed_hidden, c_.moe_inter, g_.expert);
      add_.Coded("w3", c_.moe_inter, c_.routed_hidden, g_.expert);
    }
  }

  void Norm(const char* name, uint32_t size) { add_.Vector(name, size, 1, g_.norm); }
  void ResidualProjection(const char* name) {
    add_.Vector(name, c_.hidden, 0, TensorList::PerColumn(g_.residual, c_.hidden));
  }

  const MkimConfig& c_;
  const K3Gains& g_;
  TensorList add_;
};

Result<MkimConfig> Check(const ordered_json& config) {
  std::vector<std::string> warnings;
  auto parsed = ParseConfig(config.dump(), "the new config", {}, warnings);
  if (parsed) return parsed;
  return Fail(ErrorCode::kInvalidArgument, parsed.error().message, "change the value given for it");
}

Status CheckForBuilding(const MkimConfig& config) {
  if (Status fits = CheckByteVocab(config.vocab); !fits) return fits;
  if (config.routed_hidden % 32 != 0 || config.moe_inter % 32 != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "routed_hidden " + std::to_string(config.routed_hidden) + " and moe_inter " +
                    std::to_string(config.moe_inter) + " must be multiples of 32",
                "MXFP4 experts are stored in groups of 32 columns");
  }
  return {};
}

// The lists of layers, spelled out so that no reader needs the patterns.
void SpellOutLayers(const MkimConfig& config, ordered_json& json) {
  ordered_json mla = ordered_json::array();
  ordered_json dense = ordered_json::array();
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    if (config.IsMla(l)) mla.push_back(l);
    if (config.IsDense(l)) dense.push_back(l);
  }
  json["mla_layers"] = std::move(mla);
  json["dense_layers"] = std::move(dense);
}

}  // namespace

Result<ModelPlan> PlanK3(const std::string& preset, uint64_t seed, const Overrides& overrides) {
  auto recipe = MakeK3Recipe(preset, overrides);
  if (!recipe) return Fail(recipe.error());
  ordered_json json = {{"format", 2}};
  json.update(recipe->dimensions);
  json["tokenizer"] = "bytes";
  // The ids of the specials hang on vocab, which is not known to be sound yet.
  ordered_json probe = json;
  probe["specials"] = {{"bos", 0}, {"end_of_msg", 0}};
  const auto config = Check(probe);
  if (!config) return Fail(config.error());
  const Status fits = CheckForBuilding(*config);
  if (!fits) return Fail(fits.error());
  SpellOutLayers(*config, json);
  json["specials"] = ByteVocabSpecials(config->vocab);
  K3Gains gains = recipe->gains;
  if (gains.head == 0) gains.head = DefaultHeadGain(config->vocab);
  json["synthetic"] = RecordOf(preset, seed, K3GainKeys(), gains);
  ModelPlan plan;
  plan.config_json = json.dump();
  Planner(*config, gains, plan).Run();
  return plan;
}

}  // namespace mk
