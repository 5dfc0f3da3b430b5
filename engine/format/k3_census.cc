#include "engine/format/k3_census.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

namespace mk {
namespace {

using Visitor = std::function<bool(const ExpectedTensor&)>;

// Hands out expected tensors under a prefix until the visitor has had enough.
class Lister {
 public:
  explicit Lister(const Visitor& visit) : visit_(visit) {}
  void SetPrefix(std::string prefix) { prefix_ = std::move(prefix); }
  void Matrix(std::string_view name, uint32_t rows, uint32_t cols) {
    Visit(name, {rows, cols}, false);
  }
  void Vector(std::string_view name, uint32_t size) { Visit(name, {size}, true); }
  bool done() const { return done_; }

 private:
  void Visit(std::string_view name, std::vector<uint32_t> dims, bool is_vector) {
    if (done_) return;
    done_ = !visit_(ExpectedTensor{prefix_ + std::string(name), std::move(dims), is_vector});
  }

  const Visitor& visit_;
  std::string prefix_;
  bool done_ = false;
};

void ListGlobals(const MkimConfig& c, Lister& list) {
  list.SetPrefix("");
  list.Matrix("embed_tokens.weight", c.vocab, c.hidden);
  list.Matrix("lm_head.weight", c.vocab, c.hidden);
  list.Vector("norm.weight", c.hidden);
  list.Vector("output_attn_res_norm.weight", c.hidden);
  list.Vector("output_attn_res_proj.weight", c.hidden);
}

void ListKda(const MkimConfig& c, Lister& list) {
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

void ListMla(const MkimConfig& c, Lister& list) {
  list.Matrix("q_a_proj.weight", c.mla_q_lora, c.hidden);
  list.Vector("q_a_layernorm.weight", c.mla_q_lora);
  list.Matrix("q_b_proj.weight", c.mla_heads * c.mla_qk(), c.mla_q_lora);
  list.Matrix("kv_a_proj_with_mqa.weight", c.mla_kv_lora + c.mla_rope, c.hidden);
  list.Vector("kv_a_layernorm.weight", c.mla_kv_lora);
  list.Matrix("kv_b_proj.weight", c.mla_heads * (c.mla_nope + c.mla_v), c.mla_kv_lora);
  list.Matrix("g_proj.weight", c.mla_heads * c.mla_v, c.hidden);
  list.Matrix("o_proj.weight", c.hidden, c.mla_heads * c.mla_v);
}

void ListDense(const MkimConfig& c, Lister& list) {
  list.Matrix("gate_proj.weight", c.dense_inter, c.hidden);
  list.Matrix("up_proj.weight", c.dense_inter, c.hidden);
  list.Matrix("down_proj.weight", c.hidden, c.dense_inter);
}

void ListMoe(const MkimConfig& c, Lister& list) {
  list.Matrix("gate.weight", c.n_experts, c.hidden);
  list.Vector("gate.e_score_correction_bias", c.n_experts);
  list.Matrix("routed_expert_down_proj.weight", c.routed_hidden, c.hidden);
  list.Matrix("routed_expert_up_proj.weight", c.hidden, c.routed_hidden);
  list.Vector("routed_expert_norm.weight", c.routed_hidden);
  list.Matrix("shared_experts.gate_proj.weight", c.shared_inter, c.hidden);
  list.Matrix("shared_experts.up_proj.weight", c.shared_inter, c.hidden);
  list.Matrix("shared_experts.down_proj.weight", c.hidden, c.shared_inter);
}

void ListLayer(const MkimConfig& c, uint32_t layer, Lister& list) {
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

std::vector<uint32_t> WithoutOnes(std::span<const uint32_t> dims) {
  std::vector<uint32_t> out;
  for (const uint32_t dim : dims) {
    if (dim != 1) out.push_back(dim);
  }
  return out;
}

// Walks the census of one file; see CheckK3Census.
class Census {
 public:
  Census(const MkimFile& file, std::vector<std::string>& warnings)
      : file_(file), config_(file.config()), warnings_(warnings), seen_(file.tensors().size()) {}

  Result<ALogReading> Run() {
    ForEachK3SpineTensor(config_, [this](const ExpectedTensor& expected) {
      status_ = CheckSpine(expected);
      return status_.has_value();
    });
    if (status_) status_ = CheckExperts();
    if (status_) status_ = CheckCodebook();
    if (!status_) return Fail(status_.error());
    WarnUnknown();
    return reading_.value_or(config_.kda_a_log.value_or(ALogReading::kChannel));
  }

 private:
  tl::unexpected<Error> Bad(std::string_view tensor, const std::string& problem) const {
    return Fail(ErrorCode::kCorrupt,
                file_.path() + ": tensor '" + std::string(tensor) + "' " + problem,
                "config and tensors do not belong together; export or build the model again");
  }

  void Mark(const TensorEntry* entry) {
    seen_[static_cast<size_t>(entry - file_.tensors().data())] = true;
  }

  Result<const TensorEntry*> Require(const std::string& name, const std::vector<uint32_t>& dims) {
    const TensorEntry* entry = file_.FindTensor(name);
    if (entry == nullptr) return Bad(name, "is missing, it should be " + DimsText(dims));
    Mark(entry);
    return entry;
  }

  Status CheckShape(const TensorEntry& entry, const std::vector<uint32_t>& dims) const {
    if (WithoutOnes(entry.dims()) == WithoutOnes(dims)) return {};
    // dt_bias [P] may be stored as [heads, kda_dim].
    const std::vector<uint32_t> by_head = {config_.kda_heads, config_.kda_dim};
    if (entry.name.ends_with(".dt_bias") && WithoutOnes(entry.dims()) == WithoutOnes(by_head)) {
      return {};
    }
    return Bad(entry.name,
               "has dims " + DimsText(entry.dims()) + ", the config calls for " + DimsText(dims));
  }

  Status CheckSpine(const ExpectedTensor& expected) {
    auto entry = Require(expected.name, expected.dims);
    if (!entry) return Fail(entry.error());
    const TensorEntry& tensor = **entry;
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBf16) {
      return Bad(tensor.name, "is " + std::string(DTypeName(tensor.dtype)) + ", it must be F32");
    }
    const Status shape =
        expected.name.ends_with(".A_log") ? CheckALog(tensor) : CheckShape(tensor, expected.dims);
    if (!shape) return shape;
    return expected.is_vector ? CheckFinite(tensor) : Status();
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
      return Bad(tensor.name, "has " + std::to_string(tensor.elements()) +
                                  " values, A_log of an earlier layer has another count");
    }
    reading_ = *reading;
    return {};
  }

  Status CheckFinite(const TensorEntry& tensor) {
    buffer_.resize(tensor.elements());
    const Status read = file_.ReadF32(tensor, buffer_);
    if (!read) return read;
    for (size_t i = 0; i < buffer_.size(); ++i) {
      if (!std::isfinite(buffer_[i])) {
        return Bad(tensor.name, "has a value that is not finite at index " + std::to_string(i));
      }
    }
    return {};
  }

  Status CheckExperts() {
    const std::vector<uint32_t> wide = {config_.moe_inter, config_.routed_hidden};
    const std::vector<uint32_t> tall = {config_.routed_hidden, config_.moe_inter};
    for (uint32_t l = 0; l < config_.n_layers; ++l) {
      if (config_.IsDense(l)) continue;
      for (uint32_t e = 0; e < config_.n_experts; ++e) {
        const TensorEntry* gate = file_.Expert(l, e, ExpertPart::kGate);
        for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp}) {
          const Status status =
              CheckExpert(l, e, part, part == ExpertPart::kDown ? tall : wide, gate);
          if (!status) return status;
        }
      }
    }
    return {};
  }

  Status CheckExpert(uint32_t layer, uint32_t expert, ExpertPart part,
                     const std::vector<uint32_t>& dims, const TensorEntry* gate) {
    const TensorEntry* entry = file_.Expert(layer, expert, part);
    if (entry == nullptr) {
      return Bad("layers." + std::to_string(layer) + ".block_sparse_moe.experts." +
                     std::to_string(expert) + ".w" + std::to_string(static_cast<int>(part) + 1),
                 "is missing, it should be " + DimsText(dims));
    }
    Mark(entry);
    if (entry->dtype == DType::kI32 || entry->dtype == DType::kBf16) {
      return Bad(entry->name, "is " + std::string(DTypeName(entry->dtype)) +
                                  ", an expert must be MXFP4, MXFP4SQ, VQ1 or F32");
    }
    if (entry->dtype != gate->dtype) {
      return Bad(entry->name, "is " + std::string(DTypeName(entry->dtype)) +
                                  ", but w1 of the same expert is " +
                                  std::string(DTypeName(gate->dtype)));
    }
    if (!std::equal(dims.begin(), dims.end(), entry->dims().begin(), entry->dims().end())) {
      return Bad(entry->name, "has dims " + DimsText(entry->dims()) + ", the config calls for " +
                                  DimsText(dims));
    }
    needs_codebook_ = needs_codebook_ || entry->dtype == DType::kVq1;
    return {};
  }

  Status CheckCodebook() {
    const TensorEntry* codebook = file_.FindTensor("vq_codebook");
    if (codebook == nullptr) {
      if (!needs_codebook_) return {};
      return Bad("vq_codebook", "is missing, VQ1 experts need it ([256, 16] F32)");
    }
    Mark(codebook);
    if (codebook->dtype != DType::kF32 || codebook->n_dims != 2 || codebook->shape[0] != 256 ||
        codebook->shape[1] != 16) {
      return Bad("vq_codebook", "is " + std::string(DTypeName(codebook->dtype)) + " " +
                                    DimsText(codebook->dims()) + ", it must be F32 [256, 16]");
    }
    return CheckFinite(*codebook);
  }

  void WarnUnknown() {
    constexpr uint64_t kMaxNamed = 8;
    uint64_t unknown = 0;
    for (size_t i = 0; i < seen_.size(); ++i) {
      if (seen_[i] || ++unknown > kMaxNamed) continue;
      warnings_.push_back("unknown tensor '" + std::string(file_.tensors()[i].name) +
                          "' is ignored");
    }
    if (unknown > kMaxNamed) {
      warnings_.push_back(std::to_string(unknown - kMaxNamed) +
                          " more unknown tensors are ignored");
    }
  }

  const MkimFile& file_;
  const MkimConfig& config_;
  std::vector<std::string>& warnings_;
  std::vector<bool> seen_;
  std::vector<float> buffer_;
  std::optional<ALogReading> reading_;
  bool needs_codebook_ = false;
  Status status_;
};

}  // namespace

void ForEachK3SpineTensor(const MkimConfig& config,
                          const std::function<bool(const ExpectedTensor&)>& visit) {
  Lister list(visit);
  ListGlobals(config, list);
  for (uint32_t l = 0; l < config.n_layers && !list.done(); ++l) ListLayer(config, l, list);
}

Result<ALogReading> CheckK3Census(const MkimFile& file, std::vector<std::string>& warnings) {
  return Census(file, warnings).Run();
}

}  // namespace mk
