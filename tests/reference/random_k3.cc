#include "tests/reference/random_k3.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

namespace mk::reference {
namespace {

struct Entry {
  std::string name;
  uint8_t dtype = 0;
  std::vector<uint32_t> dims;
  std::vector<uint8_t> bytes;
};

template <typename T>
void Append(std::vector<uint8_t>& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

class ModelWriter {
 public:
  ModelWriter(const nlohmann::json& config, ExpertKind kind, uint64_t seed)
      : config_(config), kind_(kind), random_(seed) {}

  void Build() {
    const uint32_t d = Dim("hidden");
    const uint32_t vocab = Dim("vocab");
    Matrix("embed_tokens.weight", vocab, d, 1.0F * std::sqrt(static_cast<float>(d)));
    Matrix("lm_head.weight", vocab, d, 2.0F);
    Norm("norm.weight", d);
    Norm("output_attn_res_norm.weight", d);
    Vector("output_attn_res_proj.weight", {d}, 0.0F, 1.0F / std::sqrt(static_cast<float>(d)));
    if (kind_ == ExpertKind::kVq1 || kind_ == ExpertKind::kMixed) {
      Vector("vq_codebook", {256, 16}, 0.0F, 0.15F);
    }
    for (uint32_t l = 0; l < Dim("n_layers"); ++l) Layer(l);
  }

  void Write(const std::string& path) {
    std::string json = config_.dump();
    std::vector<uint8_t> out;
    for (const char c : std::string("MKIM0002")) out.push_back(static_cast<uint8_t>(c));
    Append(out, static_cast<uint32_t>(json.size()));
    out.insert(out.end(), json.begin(), json.end());
    Append(out, static_cast<uint32_t>(entries_.size()));
    uint64_t position = out.size();
    for (const Entry& entry : entries_) position += 20 + entry.name.size() + 4 * entry.dims.size();
    std::vector<uint64_t> offsets;
    for (const Entry& entry : entries_) {
      position = (position + 63) / 64 * 64;
      offsets.push_back(position);
      Append(out, static_cast<uint16_t>(entry.name.size()));
      out.insert(out.end(), entry.name.begin(), entry.name.end());
      Append(out, entry.dtype);
      Append(out, static_cast<uint8_t>(entry.dims.size()));
      for (const uint32_t dim : entry.dims) Append(out, dim);
      Append(out, position);
      Append(out, static_cast<uint64_t>(entry.bytes.size()));
      position += entry.bytes.size();
    }
    for (size_t i = 0; i < entries_.size(); ++i) {
      out.resize(offsets[i], 0);
      out.insert(out.end(), entries_[i].bytes.begin(), entries_[i].bytes.end());
    }
    std::ofstream stream(path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(out.data()),
                 static_cast<std::streamsize>(out.size()));
  }

 private:
  uint32_t Dim(const char* key) const { return config_.at(key).get<uint32_t>(); }

  float Gauss(float mean, float deviation) {
    return mean + deviation * std::normal_distribution<float>()(random_);
  }

  void Vector(const std::string& name, std::vector<uint32_t> dims, float mean, float deviation) {
    size_t count = 1;
    for (const uint32_t dim : dims) count *= dim;
    Entry entry{name, 0, std::move(dims), {}};
    for (size_t i = 0; i < count; ++i) Append(entry.bytes, Gauss(mean, deviation));
    entries_.push_back(std::move(entry));
  }

  void Norm(const std::string& name, uint32_t size) { Vector(name, {size}, 1.0F, 0.2F); }

  // Values N(0, gain / sqrt(cols)): a unit input gives an output of about `gain`.
  void Matrix(const std::string& name, uint32_t rows, uint32_t cols, float gain = 1.0F) {
    Vector(name, {rows, cols}, 0.0F, gain / std::sqrt(static_cast<float>(cols)));
  }

  void Layer(uint32_t l) {
    const uint32_t d = Dim("hidden");
    const std::string prefix = "layers." + std::to_string(l) + ".";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "self_attention_res_norm", "mlp_res_norm"}) {
      Norm(prefix + norm + ".weight", d);
    }
    const float unit = 1.0F / std::sqrt(static_cast<float>(d));
    // One-row projections come as [1, d] in every other layer: both spellings are legal.
    const std::vector<uint32_t> dims =
        l % 2 ? std::vector<uint32_t>{1, d} : std::vector<uint32_t>{d};
    Vector(prefix + "self_attention_res_proj.weight", dims, 0.0F, unit);
    Vector(prefix + "mlp_res_proj.weight", dims, 0.0F, unit);
    const auto& mla = config_.at("mla_layers");
    if (std::find(mla.begin(), mla.end(), l) != mla.end()) {
      Mla(prefix + "self_attn.");
    } else {
      Kda(prefix + "self_attn.");
    }
    const auto& dense = config_.at("dense_layers");
    if (std::find(dense.begin(), dense.end(), l) != dense.end()) {
      Matrix(prefix + "mlp.gate_proj.weight", Dim("dense_inter"), d);
      Matrix(prefix + "mlp.up_proj.weight", Dim("dense_inter"), d);
      Matrix(prefix + "mlp.down_proj.weight", d, Dim("dense_inter"));
    } else {
      Moe(prefix + "block_sparse_moe.", l);
    }
  }

  void Kda(const std::string& prefix) {
    const uint32_t d = Dim("hidden");
    const uint32_t heads = Dim("kda_heads");
    const uint32_t width = heads * Dim("kda_dim");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "g_proj"}) {
      Matrix(prefix + name + ".weight", width, d);
    }
    Matrix(prefix + "o_proj.weight", d, width);
    for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
      Vector(prefix + name + ".weight", {width, 1, Dim("kda_conv")}, 0.0F, 0.5F);
    }
    Matrix(prefix + "f_a_proj.weight", Dim("kda_fa_rank"), d);
    Matrix(prefix + "f_b_proj.weight", width, Dim("kda_fa_rank"));
    const bool per_head = config_.value("kda_a_log", "channel") == "head";
    Vector(prefix + "A_log", {per_head ? heads : Dim("kda_dim")}, 1.0F, 0.8F);
    Vector(prefix + "dt_bias", {width}, -0.5F, 0.3F);
    Matrix(prefix + "b_proj.weight", heads, d);
    Norm(prefix + "o_norm.weight", Dim("kda_dim"));
  }

  void Mla(const std::string& prefix) {
    const uint32_t d = Dim("hidden");
    const uint32_t heads = Dim("mla_heads");
    Matrix(prefix + "q_a_proj.weight", Dim("mla_q_lora"), d);
    Norm(prefix + "q_a_layernorm.weight", Dim("mla_q_lora"));
    Matrix(prefix + "q_b_proj.weight", heads * (Dim("mla_nope") + Dim("mla_rope")),
           Dim("mla_q_lora"), 1.5F);
    Matrix(prefix + "kv_a_proj_with_mqa.weight", Dim("mla_kv_lora") + Dim("mla_rope"), d);
    Norm(prefix + "kv_a_layernorm.weight", Dim("mla_kv_lora"));
    Matrix(prefix + "kv_b_proj.weight", heads * (Dim("mla_nope") + Dim("mla_v")),
           Dim("mla_kv_lora"), 1.5F);
    Matrix(prefix + "g_proj.weight", heads * Dim("mla_v"), d);
    Matrix(prefix + "o_proj.weight", d, heads * Dim("mla_v"));
  }

  void Moe(const std::string& prefix, uint32_t layer) {
    const uint32_t d = Dim("hidden");
    const uint32_t experts = Dim("n_experts");
    const uint32_t latent = Dim("routed_hidden");
    const uint32_t inner = Dim("moe_inter");
    Matrix(prefix + "gate.weight", experts, d);
    Vector(prefix + "gate.e_score_correction_bias", {experts}, 0.0F, 0.1F);
    Matrix(prefix + "routed_expert_down_proj.weight", latent, d);
    Matrix(prefix + "routed_expert_up_proj.weight", d, latent);
    Norm(prefix + "routed_expert_norm.weight", latent);
    Matrix(prefix + "shared_experts.gate_proj.weight", Dim("shared_inter"), d);
    Matrix(prefix + "shared_experts.up_proj.weight", Dim("shared_inter"), d);
    Matrix(prefix + "shared_experts.down_proj.weight", d, Dim("shared_inter"));
    for (uint32_t e = 0; e < experts; ++e) {
      const std::string expert = prefix + "experts." + std::to_string(e) + ".";
      const ExpertKind kind = KindOf(layer, e);
      ExpertMatrix(expert + "w1", inner, latent, kind);
      ExpertMatrix(expert + "w2", latent, inner, kind);
      ExpertMatrix(expert + "w3", inner, latent, kind);
    }
  }

  ExpertKind KindOf(uint32_t layer, uint32_t expert) const {
    if (kind_ != ExpertKind::kMixed) return kind_;
    constexpr ExpertKind kKinds[] = {ExpertKind::kMxfp4, ExpertKind::kVq1, ExpertKind::kMxfp4Sq,
                                     ExpertKind::kF32};
    return kKinds[(layer + expert) % 4];
  }

  void ExpertMatrix(const std::string& name, uint32_t rows, uint32_t cols, ExpertKind kind) {
    if (kind == ExpertKind::kF32) return Matrix(name, rows, cols);
    const size_t weights = static_cast<size_t>(rows) * cols;
    const bool square = kind == ExpertKind::kMxfp4Sq;
    Entry entry{name, static_cast<uint8_t>(square ? 4 : 1), {rows, cols}, {}};
    const auto byte = [&] { return static_cast<uint8_t>(random_() >> 24); };
    if (kind == ExpertKind::kVq1) {
      entry.dtype = 3;
      for (size_t i = 0; i < weights / 16; ++i) entry.bytes.push_back(byte());
    } else {
      for (size_t i = 0; i < weights / 2; ++i) entry.bytes.push_back(byte());
      // Random codes have a standard deviation near 2.8; scales bring a row to about unit gain.
      for (size_t i = 0; i < weights / 32; ++i) {
        entry.bytes.push_back(square ? byte() : static_cast<uint8_t>(121 + byte() % 4));
      }
      if (square) Append(entry.bytes, 0.09F);
    }
    entries_.push_back(std::move(entry));
  }

  const nlohmann::json& config_;
  ExpertKind kind_;
  std::mt19937 random_;
  std::vector<Entry> entries_;
};

}  // namespace

nlohmann::json AwkwardConfig() {
  return {{"format", 2},
          {"n_layers", 13},
          {"hidden", 72},
          {"vocab", 131},
          {"n_experts", 11},
          {"top_k", 3},
          {"n_shared", 1},
          {"kda_heads", 3},
          {"kda_dim", 20},
          {"kda_conv", 5},
          {"kda_fa_rank", 17},
          {"gate_lower_bound", -4.0},
          {"mla_heads", 2},
          {"mla_q_lora", 36},
          {"mla_kv_lora", 28},
          {"mla_nope", 24},
          {"mla_rope", 8},
          {"mla_v", 19},
          {"routed_hidden", 64},
          {"moe_inter", 32},
          {"shared_inter", 44},
          {"dense_inter", 100},
          {"attn_res_block", 3},
          {"first_k_dense", 1},
          {"mla_layers", {3, 7, 11, 12}},
          {"dense_layers", {0, 5}},
          {"rms_eps", 1e-5},
          {"kda_a_log", "head"},
          {"kda_l2", "max1e-12"},
          {"specials", {{"bos", 123}, {"end_of_msg", 128}}}};
}

void WriteRandomK3(const std::string& path, const nlohmann::json& config, ExpertKind kind,
                   uint64_t seed) {
  ModelWriter writer(config, kind, seed);
  writer.Build();
  writer.Write(path);
}

}  // namespace mk::reference
