#include "engine/build/dsv4_plan.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/build/byte_vocab.h"
#include "engine/build/dsv4_presets.h"
#include "engine/build/tensor_list.h"
#include "engine/format/config.h"

namespace mk {
namespace {

using nlohmann::ordered_json;

class Planner {
 public:
  Planner(const MkimConfig& config, const Dsv4Gains& gains, ModelPlan& plan)
      : c_(config), ds_(config.ds), g_(gains), add_(plan) {}

  // Spine first, then the experts, layer by layer.
  void Run() {
    Globals();
    for (uint32_t l = 0; l < c_.n_layers; ++l) SpineOf(l);
    for (uint32_t l = 0; l < c_.n_layers; ++l) ExpertsOf(l);
  }

 private:
  void Globals() {
    add_.SetPrefix("");
    add_.Add("embed.weight", {c_.vocab, c_.hidden}, NormalValues{0, g_.embed});
    // Rows of special ids are zero, so that a random model does not stop early.
    NormalValues head{0, TensorList::PerColumn(g_.head, c_.hidden)};
    head.zero_from = uint64_t{FirstSpecialRow(c_.vocab)} * c_.hidden;
    add_.Add("head.weight", {c_.vocab, c_.hidden}, head);
    Norm("norm.weight", c_.hidden);
    const uint32_t streams = ds_.hc_mult;
    add_.Matrix("hc_head_fn", streams, streams * c_.hidden, g_.mixer);
    add_.Vector("hc_head_base", streams, kRead, g_.mixer_base);
    Constant("hc_head_scale", 1, 1);
  }

  void SpineOf(uint32_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    add_.SetPrefix(prefix);
    Norm("attn_norm.weight", c_.hidden);
    Norm("ffn_norm.weight", c_.hidden);
    Mixer("hc_attn_fn", "hc_attn_base", "hc_attn_scale");
    Mixer("hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale");
    Attention(layer, prefix + "attn.");
    FeedForward(layer, prefix + "ffn.");
  }

  // Streams are read about evenly (the weights sum to 1), written to with weight 1, and mixed by a
  // matrix with a strong diagonal, so that they stay different and grow no faster than one stream.
  void Mixer(const char* numbers, const char* base, const char* scale) {
    const uint32_t streams = ds_.hc_mult;
    const uint32_t rows = (2 + streams) * streams;
    add_.Matrix(numbers, rows, streams * c_.hidden, g_.mixer);
    std::vector<float> means(rows, 0.0f);
    for (uint32_t j = 0; j < streams; ++j) {
      means[j] = static_cast<float>(kRead);
      means[2 * streams + j * streams + j] = 2.0f;
    }
    add_.Add(base, {rows}, ShiftedNormalValues{std::move(means), g_.mixer_base});
    Constant(scale, 3, 1);
  }

  void Attention(uint32_t layer, const std::string& prefix) {
    const uint32_t width = ds_.n_heads * ds_.head_dim;
    const uint32_t group_rows = ds_.o_groups * ds_.o_lora_rank;
    add_.SetPrefix(prefix);
    add_.Matrix("wq_a.weight", ds_.q_lora_rank, c_.hidden, g_.attention);
    Norm("q_norm.weight", ds_.q_lora_rank);
    add_.Matrix("wq_b.weight", width, ds_.q_lora_rank, g_.attention);
    add_.Matrix("wkv.weight", ds_.head_dim, c_.hidden, g_.attention);
    Norm("kv_norm.weight", ds_.head_dim);
    add_.Matrix("wo_a.weight", group_rows, width / ds_.o_groups, g_.attention);
    add_.Matrix("wo_b.weight", c_.hidden, group_rows, g_.attention * g_.output);
    add_.Vector("attn_sink", ds_.n_heads, 0, g_.sink);
    const uint32_t ratio = ds_.compress_ratios[layer];
    if (ratio == 0) return;
    Compressor(ratio, ds_.head_dim);
    if (ratio != kIndexedRatio) return;
    add_.SetPrefix(prefix + "indexer.");
    add_.Matrix("wq_b.weight", ds_.index_n_heads * ds_.index_head_dim, ds_.q_lora_rank,
                g_.attention);
    add_.Matrix("weights_proj.weight", ds_.index_n_heads, c_.hidden, g_.attention);
    Compressor(ratio, ds_.index_head_dim);
  }

  void Compressor(uint32_t ratio, uint32_t width) {
    const uint32_t columns = (ratio == kIndexedRatio ? 2 : 1) * width;
    add_.Matrix("compressor.wkv.weight", columns, c_.hidden, g_.attention);
    add_.Matrix("compressor.wgate.weight", columns, c_.hidden, g_.attention);
    add_.Add("compressor.ape", {ratio, columns}, NormalValues{0, g_.slot});
    Norm("compressor.norm.weight", width);
  }

  void FeedForward(uint32_t layer, const std::string& prefix) {
    add_.SetPrefix(prefix);
    add_.Matrix("gate.weight", c_.n_experts, c_.hidden, g_.router);
    if (layer < ds_.n_hash_layers) {
      add_.Add("gate.tid2eid", {c_.vocab, c_.top_k}, PermutationValues{c_.n_experts}, DType::kI32);
    } else {
      add_.Vector("gate.bias", c_.n_experts, 0, g_.skew);
    }
    add_.Matrix("shared_experts.w1.weight", c_.moe_inter, c_.hidden, g_.mlp);
    add_.Matrix("shared_experts.w2.weight", c_.hidden, c_.moe_inter, g_.mlp * g_.output);
    add_.Matrix("shared_experts.w3.weight", c_.moe_inter, c_.hidden, g_.mlp);
  }

  void ExpertsOf(uint32_t layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".ffn.experts.";
    for (uint32_t e = 0; e < c_.n_experts; ++e) {
      add_.SetPrefix(prefix + std::to_string(e) + ".");
      add_.Coded("w1", c_.moe_inter, c_.hidden, g_.expert);
      add_.Coded("w2", c_.hidden, c_.moe_inter, g_.expert * g_.output);
      add_.Coded("w3", c_.moe_inter, c_.hidden, g_.expert);
    }
  }

  void Norm(const char* name, uint32_t size) { add_.Vector(name, size, 1, g_.norm); }
  void Constant(const char* name, uint32_t size, double value) {
    add_.Vector(name, size, value, 0);
  }

  // Of the weights with which streams are read: sigmoid(-1.1) is about 1/4.
  static constexpr double kRead = -1.1;

  const MkimConfig& c_;
  const DeepSeekConfig& ds_;
  const Dsv4Gains& g_;
  TensorList add_;
};

Result<MkimConfig> Check(const ordered_json& json) {
  std::vector<std::string> warnings;
  auto config = ParseConfig(json.dump(), "the new config", {}, warnings);
  if (!config) {
    return Fail(ErrorCode::kInvalidArgument, config.error().message,
                "change the value given for it");
  }
  if (Status fits = CheckByteVocab(config->vocab); !fits) return Fail(fits.error());
  return config;
}

}  // namespace

Result<ModelPlan> PlanDsv4(const std::string& preset, uint64_t seed, const Overrides& overrides) {
  auto recipe = MakeDsv4Recipe(preset, overrides);
  if (!recipe) return Fail(recipe.error());
  const ordered_json& ds = recipe->dimensions;
  ordered_json json = {{"format", 2},
                       {"arch", "deepseek_v4"},
                       {"vocab", ds.at("vocab")},
                       {"n_layers", ds.at("n_layers")},
                       {"tokenizer", "bytes"},
                       {"ds", ds}};
  const auto config = Check(json);
  if (!config) return Fail(config.error());
  Dsv4Gains gains = recipe->gains;
  if (gains.head == 0) gains.head = DefaultHeadGain(config->vocab);
  json["specials"] = ByteVocabSpecials(config->vocab);
  json["synthetic"] = RecordOf(preset, seed, Dsv4GainKeys(), gains);
  ModelPlan plan;
  plan.config_json = json.dump();
  Planner(*config, gains, plan).Run();
  return plan;
}

}  // namespace mk
