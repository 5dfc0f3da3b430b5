#include "raw_model.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mk::test {
namespace {

template <typename T>
void Put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  }
}

// Widths of SmallK3, all different where they can be.
constexpr uint32_t kHidden = 24;
constexpr uint32_t kVocab = 40;
constexpr uint32_t kExperts = 2;
constexpr uint32_t kKdaHeads = 2;
constexpr uint32_t kKdaDim = 8;
constexpr uint32_t kKdaWidth = kKdaHeads * kKdaDim;
constexpr uint32_t kLatent = 32;
constexpr uint32_t kInner = 64;

const char* const kSmallConfig =
    R"({"format":2,"n_layers":4,"hidden":24,"vocab":40,"n_experts":2,"top_k":1,"n_shared":1,)"
    R"("kda_heads":2,"kda_dim":8,"kda_conv":3,"kda_fa_rank":6,"gate_lower_bound":-5,)"
    R"("mla_heads":3,"mla_q_lora":10,"mla_kv_lora":12,"mla_nope":4,"mla_rope":2,"mla_v":5,)"
    R"("routed_hidden":32,"moe_inter":64,"shared_inter":14,"dense_inter":28,"attn_res_block":2,)"
    R"("first_k_dense":1,"rms_eps":1e-5,"mla_layers":[2,3],"dense_layers":[0,3],)"
    R"("specials":{"bos":32,"end_of_msg":37}})";

class Maker {
 public:
  explicit Maker(RawModel& model) : model_(model) {}
  std::string prefix;

  void F32(const std::string& name, std::vector<uint32_t> dims) {
    size_t count = 1;
    for (const uint32_t dim : dims) count *= dim;
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] =
          static_cast<float>(static_cast<int>((i * 7 + model_.tensors.size()) % 19) - 9) / 8;
    }
    model_.tensors.push_back(
        {prefix + name, 0, std::move(dims), F32Bytes(values), {}, {}, {}, {}, {}});
  }

  void Quantized(const std::string& name, uint8_t dtype, uint32_t rows, uint32_t cols) {
    const size_t count = size_t{rows} * cols;
    std::string data;
    if (dtype == 3) {
      for (size_t i = 0; i < count / 16; ++i) data += static_cast<char>(i * 5);
    } else {
      for (size_t i = 0; i < count / 2; ++i) data += static_cast<char>(i * 3 + 1);
      for (size_t i = 0; i < count / 32; ++i) data += static_cast<char>(120 + i % 5);
      if (dtype == 4) data += F32Bytes({0.25f});
    }
    model_.tensors.push_back({prefix + name, dtype, {rows, cols}, data, {}, {}, {}, {}, {}});
  }

  void Expert(uint32_t layer, uint32_t expert, uint8_t dtype) {
    prefix = "layers." + std::to_string(layer) + ".block_sparse_moe.experts." +
             std::to_string(expert) + ".";
    const auto add = [&](const char* name, uint32_t rows, uint32_t cols) {
      if (dtype == 0) {
        F32(name, {rows, cols});
      } else {
        Quantized(name, dtype, rows, cols);
      }
    };
    add("w1", kInner, kLatent);
    add("w2", kLatent, kInner);
    add("w3", kInner, kLatent);
  }

  void Layer(uint32_t layer, bool mla, bool dense) {
    const std::string base = "layers." + std::to_string(layer) + ".";
    prefix = base;
    F32("input_layernorm.weight", {kHidden});
    F32("post_attention_layernorm.weight", {kHidden});
    F32("self_attention_res_norm.weight", {kHidden});
    F32("self_attention_res_proj.weight", {1, kHidden});
    F32("mlp_res_norm.weight", {kHidden});
    F32("mlp_res_proj.weight", {kHidden});
    prefix = base + "self_attn.";
    mla ? Mla() : Kda();
    prefix = base + (dense ? "mlp." : "block_sparse_moe.");
    dense ? Dense() : Moe();
  }

 private:
  void Kda() {
    for (const char* name : {"q", "k", "v", "g"})
      F32(name + std::string("_proj.weight"), {kKdaWidth, kHidden});
    F32("o_proj.weight", {kHidden, kKdaWidth});
    F32("q_conv1d.weight", {kKdaWidth, 3});
    F32("k_conv1d.weight", {kKdaWidth, 1, 3});
    F32("v_conv1d.weight", {kKdaWidth, 3});
    F32("f_a_proj.weight", {6, kHidden});
    F32("f_b_proj.weight", {kKdaWidth, 6});
    F32("A_log", {kKdaDim});
    F32("dt_bias", {kKdaWidth});
    F32("b_proj.weight", {kKdaHeads, kHidden});
    F32("o_norm.weight", {kKdaDim});
  }
  void Mla() {
    F32("q_a_proj.weight", {10, kHidden});
    F32("q_a_layernorm.weight", {10});
    F32("q_b_proj.weight", {3 * (4 + 2), 10});
    F32("kv_a_proj_with_mqa.weight", {12 + 2, kHidden});
    F32("kv_a_layernorm.weight", {12});
    F32("kv_b_proj.weight", {3 * (4 + 5), 12});
    F32("g_proj.weight", {3 * 5, kHidden});
    F32("o_proj.weight", {kHidden, 3 * 5});
  }
  void Dense() {
    F32("gate_proj.weight", {28, kHidden});
    F32("up_proj.weight", {28, kHidden});
    F32("down_proj.weight", {kHidden, 28});
  }
  void Moe() {
    F32("gate.weight", {kExperts, kHidden});
    F32("gate.e_score_correction_bias", {kExperts});
    F32("routed_expert_down_proj.weight", {kLatent, kHidden});
    F32("routed_expert_up_proj.weight", {kHidden, kLatent});
    F32("routed_expert_norm.weight", {kLatent});
    F32("shared_experts.gate_proj.weight", {14, kHidden});
    F32("shared_experts.up_proj.weight", {14, kHidden});
    F32("shared_experts.down_proj.weight", {kHidden, 14});
  }

  RawModel& model_;
};

}  // namespace

RawTensor& RawModel::Find(const std::string& name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const RawTensor& t) { return t.name == name; });
  if (it == tensors.end()) {
    ADD_FAILURE() << "no tensor " << name;
    return tensors.front();
  }
  return *it;
}

void RawModel::Erase(const std::string& name) {
  const size_t before = tensors.size();
  std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
  EXPECT_EQ(tensors.size() + 1, before) << name;
}

void RawModel::Config(const std::string& from, const std::string& to) {
  const size_t at = config.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
}

std::string RawModel::Assemble() const {
  uint64_t position = magic.size() + 4;
  if (magic == "MKIM0002") position += 4 + config.size();
  for (const RawTensor& t : tensors) position += 20 + t.name.size() + 4 * t.dims.size();
  std::string out = magic;
  if (magic == "MKIM0002") {
    Put(out, config_bytes.value_or(static_cast<uint32_t>(config.size())));
    out += config;
  }
  Put(out, count.value_or(static_cast<uint32_t>(tensors.size())));
  std::string data;  // from the end of the header on
  const uint64_t data_start = position;
  for (const RawTensor& t : tensors) {
    const uint64_t alignment = t.alignment.value_or(64);
    position = (position + alignment - 1) / alignment * alignment;
    Put(out, t.name_bytes.value_or(static_cast<uint16_t>(t.name.size())));
    out += t.name;
    Put(out, t.dtype);
    Put(out, t.n_dims.value_or(static_cast<uint8_t>(t.dims.size())));
    for (const uint32_t dim : t.dims) Put(out, dim);
    Put(out, t.offset.value_or(position));
    Put(out, t.size.value_or(t.data.size()));
    data.resize(position - data_start, '\0');
    data += t.data;
    position += t.data.size();
  }
  return out + data;
}

std::string F32Bytes(const std::vector<float>& values) {
  std::string out(values.size() * sizeof(float), '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

RawModel SmallK3() {
  RawModel model;
  model.config = kSmallConfig;
  Maker make(model);
  make.F32("embed_tokens.weight", {kVocab, kHidden});
  make.F32("lm_head.weight", {kVocab, kHidden});
  make.F32("norm.weight", {kHidden});
  make.F32("output_attn_res_norm.weight", {kHidden});
  make.F32("output_attn_res_proj.weight", {1, kHidden});
  make.Layer(0, false, true);
  make.Layer(1, false, false);
  make.Layer(2, true, false);
  make.Layer(3, true, true);
  make.Expert(1, 0, 1);
  make.Expert(1, 1, 3);
  make.Expert(2, 0, 0);
  make.Expert(2, 1, 4);
  make.prefix = "";
  make.F32("vq_codebook", {256, 16});
  return model;
}

TempDirectory::TempDirectory() {
  path_ = ::testing::TempDir() + "mk_test_XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no temporary directory";
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDirectory::Write(const std::string& name, const std::string& content) const {
  const std::string path = Path(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace mk::test
