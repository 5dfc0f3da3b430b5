#include "tests/reference/k3_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

namespace mk::reference {
namespace {

double Sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
double Silu(double x) {
  return x * Sigmoid(x);
}

Vector Multiply(const Matrix& w, const Vector& x) {
  Vector y(w.rows, 0.0);
  for (size_t r = 0; r < w.rows; ++r) {
    for (size_t c = 0; c < w.cols; ++c) y[r] += w.values[r * w.cols + c] * x.at(c);
  }
  return y;
}

Vector Add(const Vector& a, const Vector& b) {
  Vector out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
  return out;
}

Vector Slice(const Vector& x, size_t begin, size_t count) {
  return Vector(x.begin() + static_cast<std::ptrdiff_t>(begin),
                x.begin() + static_cast<std::ptrdiff_t>(begin + count));
}

}  // namespace

struct K3Reference::Config {
  size_t layers, kda_heads, kda_dim, taps, mla_heads, kv_lora, nope, rope, value, top_k, block;
  double lower_bound, eps, beta, linear_beta, routed_scale;
  bool log_decay_per_head, l2_sum;
};

struct K3Reference::Layer {
  bool mla = false, dense = false;
  Vector input_norm, post_norm, attention_mix, mlp_mix;
  // KDA
  Matrix q, k, v, gate, out, f_a, f_b, beta, conv_q, conv_k, conv_v;
  Vector a_log, dt_bias, o_norm;
  std::vector<Vector> history_q, history_k, history_v;  // raw inputs, oldest first
  std::vector<Matrix> state;                            // per head [D keys][D values]
  // MLA
  Matrix q_a, q_b, kv_a, kv_b;
  Vector q_norm, kv_norm;
  std::vector<Vector> latents, shared_keys;  // per position
  // Feed-forward
  Matrix dense_gate, dense_up, dense_down;
  Matrix router, latent_down, latent_up, shared_gate, shared_up, shared_down;
  Vector router_bias, routed_norm;
  std::vector<Matrix> w1, w2, w3;
};

K3Reference::~K3Reference() = default;

Vector K3Reference::Values(const ParsedModel& model, const std::string& name) const {
  return Decode(model.tensors.at(name), codebook_);
}

Matrix K3Reference::Load(const ParsedModel& model, const std::string& name) const {
  const Tensor& tensor = model.tensors.at(name);
  Matrix matrix;
  matrix.rows = tensor.dims.at(0);
  matrix.values = Decode(tensor, codebook_);
  matrix.cols = matrix.values.size() / matrix.rows;
  return matrix;
}

K3Reference::Layer K3Reference::LoadLayer(const ParsedModel& model, size_t index) const {
  const nlohmann::json& json = model.config;
  const auto listed = [&](const char* key) {
    const auto& list = json.at(key);
    return std::find(list.begin(), list.end(), index) != list.end();
  };
  const size_t count = config_->layers;
  Layer layer;
  layer.mla =
      json.contains("mla_layers") ? listed("mla_layers") : index % 4 == 3 || index + 1 == count;
  layer.dense = json.contains("dense_layers") ? listed("dense_layers")
                                              : index < json.value("first_k_dense", size_t{1});
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const auto fold = [&](const std::string& norm, const std::string& projection) {
    Vector out = Values(model, prefix + norm);
    const Vector factor = Values(model, prefix + projection);
    for (size_t i = 0; i < out.size(); ++i) out[i] *= factor[i];
    return out;
  };
  layer.input_norm = Values(model, prefix + "input_layernorm.weight");
  layer.post_norm = Values(model, prefix + "post_attention_layernorm.weight");
  layer.attention_mix = fold("self_attention_res_norm.weight", "self_attention_res_proj.weight");
  layer.mlp_mix = fold("mlp_res_norm.weight", "mlp_res_proj.weight");

  const std::string attn = prefix + "self_attn.";
  const auto matrix = [&](const std::string& name) { return Load(model, name); };
  layer.gate = matrix(attn + "g_proj.weight");
  layer.out = matrix(attn + "o_proj.weight");
  if (layer.mla) {
    layer.q_a = matrix(attn + "q_a_proj.weight");
    layer.q_b = matrix(attn + "q_b_proj.weight");
    layer.kv_a = matrix(attn + "kv_a_proj_with_mqa.weight");
    layer.kv_b = matrix(attn + "kv_b_proj.weight");
    layer.q_norm = Values(model, attn + "q_a_layernorm.weight");
    layer.kv_norm = Values(model, attn + "kv_a_layernorm.weight");
  } else {
    layer.q = matrix(attn + "q_proj.weight");
    layer.k = matrix(attn + "k_proj.weight");
    layer.v = matrix(attn + "v_proj.weight");
    layer.f_a = matrix(attn + "f_a_proj.weight");
    layer.f_b = matrix(attn + "f_b_proj.weight");
    layer.beta = matrix(attn + "b_proj.weight");
    layer.conv_q = matrix(attn + "q_conv1d.weight");
    layer.conv_k = matrix(attn + "k_conv1d.weight");
    layer.conv_v = matrix(attn + "v_conv1d.weight");
    layer.a_log = Values(model, attn + "A_log");
    layer.dt_bias = Values(model, attn + "dt_bias");
    layer.o_norm = Values(model, attn + "o_norm.weight");
    const Config& c = *config_;
    const Vector zero(c.kda_heads * c.kda_dim, 0.0);
    layer.history_q.assign(c.taps - 1, zero);
    layer.history_k = layer.history_v = layer.history_q;
    layer.state.assign(c.kda_heads, {c.kda_dim, c.kda_dim, Vector(c.kda_dim * c.kda_dim, 0.0)});
  }
  if (layer.dense) {
    layer.dense_gate = matrix(prefix + "mlp.gate_proj.weight");
    layer.dense_up = matrix(prefix + "mlp.up_proj.weight");
    layer.dense_down = matrix(prefix + "mlp.down_proj.weight");
    return layer;
  }
  const std::string moe = prefix + "block_sparse_moe.";
  layer.router = matrix(moe + "gate.weight");
  layer.router_bias = Values(model, moe + "gate.e_score_correction_bias");
  layer.latent_down = matrix(moe + "routed_expert_down_proj.weight");
  layer.latent_up = matrix(moe + "routed_expert_up_proj.weight");
  layer.routed_norm = Values(model, moe + "routed_expert_norm.weight");
  layer.shared_gate = matrix(moe + "shared_experts.gate_proj.weight");
  layer.shared_up = matrix(moe + "shared_experts.up_proj.weight");
  layer.shared_down = matrix(moe + "shared_experts.down_proj.weight");
  for (size_t e = 0; e < layer.router.rows; ++e) {
    const std::string expert = moe + "experts." + std::to_string(e) + ".";
    layer.w1.push_back(matrix(expert + "w1"));
    layer.w2.push_back(matrix(expert + "w2"));
    layer.w3.push_back(matrix(expert + "w3"));
  }
  return layer;
}

K3Reference::K3Reference(const ParsedModel& model) {
  const nlohmann::json& json = model.config;
  auto owned = std::make_unique<Config>();
  Config& c = *owned;
  c.layers = json.at("n_layers");
  c.kda_heads = json.at("kda_heads");
  c.kda_dim = json.at("kda_dim");
  c.taps = json.value("kda_conv", size_t{4});
  c.mla_heads = json.at("mla_heads");
  c.kv_lora = json.at("mla_kv_lora");
  c.nope = json.at("mla_nope");
  c.rope = json.at("mla_rope");
  c.value = json.at("mla_v");
  c.top_k = json.at("top_k");
  c.block = json.at("attn_res_block");
  c.lower_bound = json.value("gate_lower_bound", -5.0);
  // The engine holds this constant as f32, as every reader of the format does.
  c.eps = static_cast<float>(json.value("rms_eps", 1e-5));
  c.beta = json.value("situ_beta", 4.0);
  c.linear_beta = json.value("situ_linear_beta", 25.0);
  c.routed_scale = json.value("routed_scale", 1.0);
  c.log_decay_per_head = json.value("kda_a_log", "channel") == "head";
  c.l2_sum = json.value("kda_l2", "max1e-12") == "sum1e-6";
  config_ = std::move(owned);
  if (model.tensors.contains("vq_codebook")) codebook_ = Values(model, "vq_codebook");
  embedding_ = Load(model, "embed_tokens.weight");
  head_ = Load(model, "lm_head.weight");
  final_norm_ = Values(model, "norm.weight");
  output_mix_ = Values(model, "output_attn_res_norm.weight");
  const Vector projection = Values(model, "output_attn_res_proj.weight");
  for (size_t i = 0; i < output_mix_.size(); ++i) output_mix_[i] *= projection[i];
  for (size_t l = 0; l < c.layers; ++l) layers_.push_back(LoadLayer(model, l));
}

// y_j = x_j / sqrt(mean(x^2) + eps) * gain_j
Vector K3Reference::Rms(const Vector& x, const Vector& gain) const {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + config_->eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inverse * gain.at(i);
  return y;
}

Vector K3Reference::Norm2(const Vector& x) const {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double norm = config_->l2_sum ? std::sqrt(sum + 1e-6) : std::max(std::sqrt(sum), 1e-12);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / norm;
  return y;
}

// [beta * tanh(g / beta) * sigmoid(g)] * [beta2 * tanh(u / beta2)]
Vector K3Reference::Situ(const Vector& gate, const Vector& up) const {
  const double beta = config_->beta;
  const double linear = config_->linear_beta;
  Vector y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = beta * std::tanh(gate[i] / beta) * Sigmoid(gate[i]) * linear * std::tanh(up[i] / linear);
  }
  return y;
}

// Attention residual: softmax over the candidates of <c / rms(c), weight>, then their mean.
Vector K3Reference::Mix(const std::vector<Vector>& candidates, const Vector& weight) const {
  Vector scores;
  for (const Vector& candidate : candidates) {
    double square = 0;
    for (const double value : candidate) square += value * value;
    const double inverse =
        1.0 / std::sqrt(square / static_cast<double>(candidate.size()) + config_->eps);
    double score = 0;
    for (size_t i = 0; i < weight.size(); ++i) score += candidate[i] * inverse * weight[i];
    scores.push_back(score);
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - top);
  Vector out(weight.size(), 0.0);
  for (size_t j = 0; j < candidates.size(); ++j) {
    for (size_t i = 0; i < out.size(); ++i) out[i] += scores[j] / total * candidates[j][i];
  }
  return out;
}

// Causal depthwise convolution of raw inputs, then SiLU; tap 0 multiplies the oldest input.
static Vector Convolve(const Matrix& taps, std::vector<Vector>& history, const Vector& input) {
  Vector out(input.size(), 0.0);
  history.push_back(input);
  for (size_t c = 0; c < out.size(); ++c) {
    for (size_t t = 0; t < taps.cols; ++t) out[c] += taps.values[c * taps.cols + t] * history[t][c];
    out[c] = Silu(out[c]);
  }
  history.erase(history.begin());
  return out;
}

// Per head: S <- diag(e^g) S; delta = v - k^T S; S <- S + (eta k) delta^T; o = q^T S.
Vector K3Reference::KdaAttention(Layer& layer, const Vector& x) {
  const Config& c = *config_;
  const size_t dim = c.kda_dim;
  const Vector q_all = Convolve(layer.conv_q, layer.history_q, Multiply(layer.q, x));
  const Vector k_all = Convolve(layer.conv_k, layer.history_k, Multiply(layer.k, x));
  const Vector v_all = Convolve(layer.conv_v, layer.history_v, Multiply(layer.v, x));
  const Vector z = Multiply(layer.f_b, Multiply(layer.f_a, x));
  const Vector write = Multiply(layer.beta, x);
  const Vector gate = Multiply(layer.gate, x);
  Vector joined;
  for (size_t h = 0; h < c.kda_heads; ++h) {
    const Vector q = Norm2(Slice(q_all, h * dim, dim));
    const Vector k = Norm2(Slice(k_all, h * dim, dim));
    const double eta = Sigmoid(write[h]);
    Vector& state = layer.state[h].values;
    for (size_t i = 0; i < dim; ++i) {
      const double a = std::exp(layer.a_log[c.log_decay_per_head ? h : i]);
      const double decay =
          std::exp(c.lower_bound * Sigmoid(a * (z[h * dim + i] + layer.dt_bias[h * dim + i])));
      for (size_t j = 0; j < dim; ++j) state[i * dim + j] *= decay;
    }
    Vector out(dim, 0.0);
    for (size_t j = 0; j < dim; ++j) {
      double delta = v_all[h * dim + j];
      for (size_t i = 0; i < dim; ++i) delta -= k[i] * state[i * dim + j];
      for (size_t i = 0; i < dim; ++i) {
        state[i * dim + j] += eta * k[i] * delta;
        out[j] += q[i] / std::sqrt(static_cast<double>(dim)) * state[i * dim + j];
      }
    }
    out = Rms(out, layer.o_norm);
    for (size_t j = 0; j < dim; ++j) joined.push_back(out[j] * Sigmoid(gate[h * dim + j]));
  }
  return Multiply(layer.out, joined);
}

// Keys and values are expanded from the latent rows at every step: the slow and obvious form.
Vector K3Reference::MlaAttention(Layer& layer, const Vector& x) {
  const Config& c = *config_;
  const size_t query_size = c.nope + c.rope;
  const Vector queries = Multiply(layer.q_b, Rms(Multiply(layer.q_a, x), layer.q_norm));
  const Vector down = Multiply(layer.kv_a, x);
  layer.latents.push_back(Rms(Slice(down, 0, c.kv_lora), layer.kv_norm));
  layer.shared_keys.push_back(Slice(down, c.kv_lora, c.rope));
  const Vector gate = Multiply(layer.gate, x);
  const size_t positions = layer.latents.size();
  std::vector<Vector> expanded;
  for (const Vector& latent : layer.latents) expanded.push_back(Multiply(layer.kv_b, latent));
  Vector joined;
  for (size_t h = 0; h < c.mla_heads; ++h) {
    const size_t row = h * (c.nope + c.value);
    Vector scores(positions);
    for (size_t t = 0; t < positions; ++t) {
      double score = 0;
      for (size_t i = 0; i < c.nope; ++i) {
        score += queries[h * query_size + i] * expanded[t][row + i];
      }
      for (size_t i = 0; i < c.rope; ++i) {
        score += queries[h * query_size + c.nope + i] * layer.shared_keys[t][i];
      }
      scores[t] = score / std::sqrt(static_cast<double>(query_size));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - top);
    for (size_t j = 0; j < c.value; ++j) {
      double out = 0;
      for (size_t t = 0; t < positions; ++t) {
        out += scores[t] / total * expanded[t][row + c.nope + j];
      }
      joined.push_back(out * Sigmoid(gate[h * c.value + j]));
    }
  }
  return Multiply(layer.out, joined);
}

Vector K3Reference::Attention(Layer& layer, const Vector& x) {
  return layer.mla ? MlaAttention(layer, x) : KdaAttention(layer, x);
}

Vector K3Reference::RoutedExperts(const Layer& layer, const Vector& x, TokenTrace& trace) const {
  const Config& c = *config_;
  Vector score = Multiply(layer.router, x);
  for (double& value : score) value = Sigmoid(value);
  std::vector<int> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int e) { return score[e] + layer.router_bias[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) > key(b); });
  const std::vector<int> picked(order.begin(), order.begin() + static_cast<long>(c.top_k));
  trace.router_gap.back() =
      c.top_k < order.size() ? key(picked.back()) - key(order[c.top_k]) : INFINITY;
  double total = 1e-20;
  for (const int e : picked) total += score[e];
  const Vector latent = Multiply(layer.latent_down, x);
  Vector sum(latent.size(), 0.0);
  for (const int e : picked) {
    const double weight = score[e] / total * c.routed_scale;
    const Vector inner = Situ(Multiply(layer.w1[e], latent), Multiply(layer.w3[e], latent));
    const Vector out = Multiply(layer.w2[e], inner);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * out[i];
    trace.weights.back().push_back(weight);
  }
  trace.experts.back() = picked;
  return Multiply(layer.latent_up, Rms(sum, layer.routed_norm));
}

Vector K3Reference::FeedForward(const Layer& layer, const Vector& x, TokenTrace& trace) const {
  trace.experts.emplace_back();
  trace.weights.emplace_back();
  trace.router_gap.push_back(INFINITY);
  if (layer.dense) {
    return Multiply(layer.dense_down,
                    Situ(Multiply(layer.dense_gate, x), Multiply(layer.dense_up, x)));
  }
  const Vector shared = Multiply(
      layer.shared_down, Situ(Multiply(layer.shared_gate, x), Multiply(layer.shared_up, x)));
  return Add(RoutedExperts(layer, x, trace), shared);
}

TokenTrace K3Reference::Feed(int token) {
  TokenTrace trace;
  const size_t width = embedding_.cols;
  Vector hidden = Slice(embedding_.values, static_cast<size_t>(token) * width, width);
  std::vector<Vector> blocks;
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    std::vector<Vector> candidates = blocks;
    candidates.push_back(hidden);
    const Vector x = blocks.empty() ? hidden : Mix(candidates, layer.attention_mix);
    const bool closes = l % config_->block == 0;
    if (closes) blocks.push_back(hidden);
    const Vector attention = Attention(layer, Rms(x, layer.input_norm));
    const Vector partial = closes ? attention : Add(hidden, attention);
    candidates = blocks;
    candidates.push_back(partial);
    const Vector feed_forward =
        FeedForward(layer, Rms(Mix(candidates, layer.mlp_mix), layer.post_norm), trace);
    hidden = Add(partial, feed_forward);
    trace.attention.push_back(attention);
    trace.feed_forward.push_back(feed_forward);
    trace.hidden.push_back(hidden);
  }
  blocks.push_back(hidden);
  trace.logits = Multiply(head_, Rms(Mix(blocks, output_mix_), final_norm_));
  return trace;
}

}  // namespace mk::reference
