#include "engine/format/k3_census.h"

#include <optional>

namespace mk {
namespace {

void ListGlobals(const MkimConfig& c, TensorLister& list) {
  list.SetPrefix("");
  list.Matrix("embed_tokens.weight", c.vocab, c.hidden);
  list.Matrix("lm_head.weight", c.vocab, c.hidden);
  list.Vector("norm.weight", c.hidden);
  list.Vector("output_attn_res_norm.weight", c.hidden);
  list.Vector("output_attn_res_proj.weight", c.hidden);
}

void ListKda(const MkimConfig& c, TensorLister& list) {
  const uint32_t width = c.kda_width();
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight"}) {
    list.Matrix(name, width, c.hidden);
  }
  list.Matrix("o_proj.weight", c.hidden, width);
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    list.Matrix(name, width, c.kda_conv);
  }
  list.Matrix("f_a_proj.weight", c.kda_fa_rank, c.hidden);
  list.Matrix("f_b_proj.weight", width, c.kda_fa_rank);
  list.Vector("A_log", c.kda_dim);
  list.Vector("dt_bias", width);
  list.Matrix("b_proj.weight", c.kda_heads, c.hidden);
  list.Vector("o_norm.weight", c.kda_dim);
}

void ListMla(const MkimConfig& c, TensorLister& list) {
  list.Matrix("q_a_proj.weight", c.mla_q_lora, c.hidden);
  list.Vector("q_a_layernorm.weight", c.mla_q_lora);
  list.Matrix("q_b_proj.weight", c.mla_heads * c.mla_qk(), c.mla_q_lora);
  list.Matrix("kv_a_proj_with_mqa.weight", c.mla_kv_lora + c.mla_rope, c.hidden);
  list.Vector("kv_a_layernorm.weight", c.mla_kv_lora);
  list.Matrix("kv_b_proj.weight", c.mla_heads * (c.mla_nope + c.mla_v), c.mla_kv_lora);
  list.Matrix("g_proj.weight", c.mla_heads * c.mla_v, c.hidden);
  list.Matrix("o_proj.weight", c.hidden, c.mla_heads * c.mla_v);
}

void ListDense(const MkimConfig& c, TensorLister& list) {
  list.Matrix("gate_proj.weight", c.dense_inter, c.hidden);
  list.Matrix("up_proj.weight", c.dense_inter, c.hidden);
  list.Matrix("down_proj.weight", c.hidden, c.dense_inter);
}

void ListMoe(const MkimConfig& c, TensorLister& list) {
  list.Matrix("gate.weight", c.n_experts, c.hidden);
  list.Vector("gate.e_score_correction_bias", c.n_experts);
  list.Matrix("routed_expert_down_proj.weight", c.routed_hidden, c.hidden);
  list.Matrix("routed_expert_up_proj.weight", c.hidden, c.routed_hidden);
  list.Vector("routed_expert_norm.weight", c.routed_hidden);
  list.Matrix("shared_experts.gate_proj.weight", c.shared_inter, c.hidden);
  list.Matrix("shared_experts.up_proj.weight", c.shared_inter, c.hidden);
  list.Matrix("shared_experts.down_proj.weight", c.hidden, c.shared_inter);
}

void ListLayer(const MkimConfig& c, uint32_t layer, TensorLister& list) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  list.SetPrefix(prefix);
  for (const char* name : {"input_layernorm.weight", "post_attention_layernorm.weight",
                           "self_attention_res_norm.weight", "mlp_res_norm.weight",
                           "self_attention_res_proj.weight", "mlp_res_proj.weight"}) {
    list.Vector(name, c.hidden);
  }
  list.SetPrefix(prefix + "self_attn.");
  if (c.IsMla(layer)) {
    ListMla(c, list);
  } else {
    ListKda(c, list);
  }
  list.SetPrefix(prefix + (c.IsDense(layer) ? "mlp." : "block_sparse_moe."));
  if (c.IsDense(layer)) {
    ListDense(c, list);
  } else {
    ListMoe(c, list);
  }
}

// Walks the census of one file; see CheckK3Census.
class Census {
 public:
  Census(const MkimFile& file, std::vector<std::string>& warnings)
      : file_(file), config_(file.config()), warnings_(warnings), tensors_(file) {}

  Result<ALogReading> Run() {
    ForEachK3SpineTensor(config_, [this](const ExpectedTensor& expected) {
      status_ = CheckSpine(expected);
      return status_.has_value();
    });
    for (uint32_t l = 0; l < config_.n_layers && status_; ++l) {
      if (config_.IsDense(l)) continue;
      status_ =
          tensors_.CheckExperts(l, "layers." + std::to_string(l) + ".block_sparse_moe.experts.",
                                config_.routed_hidden, config_.moe_inter);
    }
    if (status_) status_ = tensors_.CheckCodebook();
    if (!status_) return Fail(status_.error());
    tensors_.WarnUnknown(warnings_);
    return reading_.value_or(config_.kda_a_log.value_or(ALogReading::kChannel));
  }

 private:
  Status CheckSpine(const ExpectedTensor& expected) {
    const bool a_log = expected.name.ends_with(".A_log");
    const bool by_head = expected.name.ends_with(".dt_bias");
    if (!a_log && !by_head) return tensors_.CheckSpine(expected);
    auto required = tensors_.Require(expected.name, expected.dims);
    if (!required) return Fail(required.error());
    const TensorEntry& tensor = **required;
    if (Status good = tensors_.CheckFloats(tensor); !good) return good;
    // dt_bias [P] may be stored as [heads, kda_dim].
    const std::vector<uint32_t> heads = {config_.kda_heads, config_.kda_dim};
    const bool fits = by_head && WithoutOnes(tensor.dims()) == WithoutOnes(heads);
    Status shape = a_log  ? CheckALog(tensor)
                   : fits ? Status()
                          : tensors_.CheckShape(tensor, expected.dims);
    if (!shape) return shape;
    return tensors_.CheckFinite(tensor);
  }

  Status CheckALog(const TensorEntry& tensor) {
    std::vector<std::string> ignored;
    // One warning for the file, not one per layer.
    auto reading = ResolveALog(config_, tensor.elements(), std::string(tensor.name),
                               reading_ ? ignored : warnings_);
    if (!reading) {
      Error error = reading.error();
      error.message = file_.path() + ": " + error.message;
      return Fail(std::move(error));
    }
    if (reading_ && *reading_ != *reading) {
      return tensors_.Bad(tensor.name, "has " + std::to_string(tensor.elements()) +
                                           " values, A_log of an earlier layer has another count");
    }
    reading_ = *reading;
    return {};
  }

  const MkimFile& file_;
  const MkimConfig& config_;
  std::vector<std::string>& warnings_;
  TensorCensus tensors_;
  std::optional<ALogReading> reading_;
  Status status_;
};

}  // namespace

void ForEachK3SpineTensor(const MkimConfig& config, const TensorVisitor& visit) {
  TensorLister list(visit);
  ListGlobals(config, list);
  for (uint32_t l = 0; l < config.n_layers && !list.done(); ++l) ListLayer(config, l, list);
}

Result<ALogReading> CheckK3Census(const MkimFile& file, std::vector<std::string>& warnings) {
  return Census(file, warnings).Run();
}

}  // namespace mk
