#include "tests/reference/dsv4_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "tests/reference/small_floats.h"

namespace mk::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

Vector Multiply(const Matrix& w, const Vector& x) {
  Vector y(w.rows, 0.0);
  for (size_t r = 0; r < w.rows; ++r) {
    for (size_t c = 0; c < w.cols; ++c) y[r] += w.values[r * w.cols + c] * x.at(c);
  }
  return y;
}

Vector Slice(const Vector& x, size_t begin, size_t count) {
  return Vector(x.begin() + static_cast<std::ptrdiff_t>(begin),
                x.begin() + static_cast<std::ptrdiff_t>(begin + count));
}

double MeanSquare(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum / static_cast<double>(x.size());
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

// Indices of `keys`, largest first, of equal keys the smaller index first.
std::vector<int> Ranking(const Vector& keys) {
  std::vector<int> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return keys[static_cast<size_t>(a)] > keys[static_cast<size_t>(b)];
  });
  return order;
}

// Frequencies as the model has them: floats.
std::vector<float> Frequencies(size_t width, double theta) {
  std::vector<float> out;
  for (size_t i = 0; i < width / 2; ++i) {
    const auto exponent =
        static_cast<float>(2.0 * static_cast<double>(i)) / static_cast<float>(width);
    out.push_back(1.0F / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  return out;
}

}  // namespace

struct Dsv4Reference::Config {
  explicit Config(const nlohmann::json& json) {
    const nlohmann::json& ds = json.at("ds");
    const auto size = [&](const char* key, size_t missing) { return ds.value(key, missing); };
    layers = size("n_layers", 43);
    hidden = size("hidden", 512);
    heads = size("n_heads", 8);
    head_dim = size("head_dim", 128);
    rope = size("qk_rope_head_dim", 64);
    groups = size("o_groups", 8);
    window = size("sliding_window", 128);
    index_heads = size("index_n_heads", 8);
    index_dim = size("index_head_dim", 128);
    index_topk = size("index_topk", 64);
    top_k = size("num_experts_per_tok", 6);
    hash_layers = size("num_hash_layers", 3);
    streams = size("hc_mult", 4);
    iterations = size("hc_sinkhorn_iters", 20);
    mix_eps = ds.value("hc_eps", 1e-6);
    eps = ds.value("rms_norm_eps", 1e-6);
    routed_scale = ds.value("routed_scaling_factor", 1.5);
    limit = ds.value("swiglu_limit", 10.0);
    round = ds.value("act_qat", true);
    ratios.resize(layers, 0);
    const auto& list = ds.at("compress_ratios");
    for (size_t l = 0; l < std::min(layers, list.size()); ++l) ratios[l] = list[l];
    plain = Frequencies(rope, ds.value("rope_theta", 10000.0));
    const double theta = ds.value("compress_rope_theta", 160000.0);
    compressed = Frequencies(rope, theta);
    Stretch(theta, ds.value("yarn_factor", 16.0), ds.value("yarn_beta_fast", 32.0),
            ds.value("yarn_beta_slow", 1.0), ds.value("yarn_orig_seq_len", 65536.0));
  }

  // YaRN: pairs that turn slowly are interpolated.
  void Stretch(double theta, double factor, double fast, double slow, double length) {
    const auto width = static_cast<double>(rope);
    const auto pair = [&](double turns) {
      return width * std::log(length / (2 * std::numbers::pi * turns)) / (2 * std::log(theta));
    };
    const double low = std::max(std::floor(pair(fast)), 0.0);
    const double high = std::min(std::ceil(pair(slow)), width - 1);
    for (size_t i = 0; i < compressed.size(); ++i) {
      const double ramp = (static_cast<double>(i) - low) / (std::max(high, low + 1) - low);
      const auto keep = 1.0F - std::clamp(static_cast<float>(ramp), 0.0F, 1.0F);
      compressed[i] =
          compressed[i] / static_cast<float>(factor) * (1.0F - keep) + compressed[i] * keep;
    }
  }

  size_t layers, hidden, heads, head_dim, rope, groups, window, index_heads, index_dim, index_topk;
  size_t top_k, hash_layers, streams, iterations;
  double mix_eps, eps, routed_scale, limit;
  bool round;
  std::vector<size_t> ratios;
  std::vector<float> plain, compressed;
};

struct Dsv4Reference::Mixer {
  Matrix numbers;
  Vector base, scale;
};

struct Dsv4Reference::Mixed {
  Vector input;              // what the part reads
  Vector post;               // [S]
  std::vector<Vector> comb;  // [S][S]
};

struct Dsv4Reference::Compressor {
  Matrix values, scores, bias;
  Vector norm;
  std::vector<Vector> token_values, token_scores;  // per position, scores with the bias
  std::vector<Vector> rows;
};

struct Dsv4Reference::Layer {
  size_t ratio = 0;
  bool hashed = false;
  Mixer attention_mixer, ffn_mixer;
  Vector attention_norm, ffn_norm;
  Matrix q_a, q_b, kv, out_a, out_b;
  Vector q_norm, kv_norm, sink;
  std::vector<Vector> window;  // per position
  Compressor compressor, index;
  Matrix index_query, index_weights;
  Matrix router;
  Vector bias;
  std::vector<int> table;
  Matrix shared_w1, shared_w2, shared_w3;
  std::vector<Matrix> w1, w2, w3;
};

Dsv4Reference::~Dsv4Reference() = default;

namespace {

Vector Values(const ParsedModel& model, const std::string& name) {
  return Decode(model.tensors.at(name), {});
}

Matrix Load(const ParsedModel& model, const std::string& name) {
  const Tensor& tensor = model.tensors.at(name);
  Matrix matrix;
  matrix.rows = tensor.dims.at(0);
  matrix.values = Decode(tensor, {});
  matrix.cols = matrix.values.size() / matrix.rows;
  return matrix;
}

}  // namespace

Dsv4Reference::Mixer Dsv4Reference::LoadMixer(const ParsedModel& model,
                                              const std::string& name) const {
  return {Load(model, name + "_fn"), Values(model, name + "_base"), Values(model, name + "_scale")};
}

Dsv4Reference::Compressor Dsv4Reference::LoadCompressor(const ParsedModel& model,
                                                        const std::string& prefix) const {
  Compressor out;
  out.values = Load(model, prefix + "wkv.weight");
  out.scores = Load(model, prefix + "wgate.weight");
  out.bias = Load(model, prefix + "ape");
  out.norm = Values(model, prefix + "norm.weight");
  return out;
}

Dsv4Reference::Layer Dsv4Reference::LoadLayer(const ParsedModel& model, size_t index) const {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const auto matrix = [&](const std::string& name) { return Load(model, prefix + name); };
  const auto vector = [&](const std::string& name) { return Values(model, prefix + name); };
  Layer layer;
  layer.ratio = config_->ratios[index];
  layer.hashed = index < config_->hash_layers;
  layer.attention_mixer = LoadMixer(model, prefix + "hc_attn");
  layer.ffn_mixer = LoadMixer(model, prefix + "hc_ffn");
  layer.attention_norm = vector("attn_norm.weight");
  layer.ffn_norm = vector("ffn_norm.weight");
  layer.q_a = matrix("attn.wq_a.weight");
  layer.q_norm = vector("attn.q_norm.weight");
  layer.q_b = matrix("attn.wq_b.weight");
  layer.kv = matrix("attn.wkv.weight");
  layer.kv_norm = vector("attn.kv_norm.weight");
  layer.out_a = matrix("attn.wo_a.weight");
  layer.out_b = matrix("attn.wo_b.weight");
  layer.sink = vector("attn.attn_sink");
  if (layer.ratio > 0) layer.compressor = LoadCompressor(model, prefix + "attn.compressor.");
  if (layer.ratio == 4) {
    layer.index = LoadCompressor(model, prefix + "attn.indexer.compressor.");
    layer.index_query = matrix("attn.indexer.wq_b.weight");
    layer.index_weights = matrix("attn.indexer.weights_proj.weight");
  }
  layer.router = matrix("ffn.gate.weight");
  if (layer.hashed) {
    for (const double entry : vector("ffn.gate.tid2eid")) {
      layer.table.push_back(static_cast<int>(entry));
    }
  } else {
    layer.bias = vector("ffn.gate.bias");
  }
  layer.shared_w1 = matrix("ffn.shared_experts.w1.weight");
  layer.shared_w2 = matrix("ffn.shared_experts.w2.weight");
  layer.shared_w3 = matrix("ffn.shared_experts.w3.weight");
  for (size_t e = 0; e < layer.router.rows; ++e) {
    const std::string expert = "ffn.experts." + std::to_string(e);
    layer.w1.push_back(matrix(expert + ".w1"));
    layer.w2.push_back(matrix(expert + ".w2"));
    layer.w3.push_back(matrix(expert + ".w3"));
  }
  return layer;
}

Dsv4Reference::Dsv4Reference(const ParsedModel& model)
    : config_(std::make_unique<const Config>(model.config)),
      embedding_(Load(model, "embed.weight")),
      head_(Load(model, "head.weight")),
      final_norm_(Values(model, "norm.weight")),
      head_mixer_(std::make_unique<const Mixer>(LoadMixer(model, "hc_head"))) {
  for (size_t l = 0; l < config_->layers; ++l) layers_.push_back(LoadLayer(model, l));
}

Vector Dsv4Reference::Rms(const Vector& x, const Vector& gain) const {
  const double inverse = 1.0 / std::sqrt(MeanSquare(x) + config_->eps);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inverse * gain.at(i);
  return y;
}

// Rotates the adjacent pairs of the last R values by the angles of a position, or back.
Vector Dsv4Reference::Turn(Vector x, size_t position, bool compressed, double direction) const {
  const std::vector<float>& frequencies = compressed ? config_->compressed : config_->plain;
  double* const tail = x.data() + x.size() - config_->rope;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    const double c = std::cos(static_cast<double>(angle));
    const double s = direction * std::sin(static_cast<double>(angle));
    const double a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * c - b * s;
    tail[2 * i + 1] = a * s + b * c;
  }
  return x;
}

// FP8 in blocks of 64, all but the rotated values.
void Dsv4Reference::RoundRow(Vector& row, Dsv4Trace& trace) const {
  if (!config_->round) return;
  const size_t end = row.size() - config_->rope;
  for (size_t begin = 0; begin < end; begin += 64) {
    RoundBlock(E4m3Levels(), 1e-4, row, begin, std::min(begin + 64, end), trace.rounding_margin);
  }
}

// FP4 in blocks of 32.
void Dsv4Reference::RoundIndex(Vector& row, Dsv4Trace& trace) const {
  if (!config_->round) return;
  for (size_t begin = 0; begin < row.size(); begin += 32) {
    RoundBlock(E2m1Levels(), 6 * std::exp2(-126), row, begin, begin + 32, trace.rounding_margin);
  }
}

// pre, post and comb of a mixer, and the mix of the streams.
Dsv4Reference::Mixed Dsv4Reference::Mix(const Mixer& mixer,
                                        const std::vector<Vector>& streams) const {
  const size_t n = streams.size();
  Vector x;
  for (const Vector& stream : streams) x.insert(x.end(), stream.begin(), stream.end());
  const double inverse = 1.0 / std::sqrt(MeanSquare(x) + config_->eps);
  Vector m = Multiply(mixer.numbers, x);
  for (size_t i = 0; i < m.size(); ++i) {
    const size_t part = i < n ? 0 : i < 2 * n ? 1 : 2;
    m[i] = m[i] * inverse * mixer.scale.at(part) + mixer.base.at(i);
  }
  Mixed out;
  out.input.assign(streams[0].size(), 0.0);
  for (size_t j = 0; j < n; ++j) {
    const double pre = Sigmoid(m[j]) + config_->mix_eps;
    for (size_t i = 0; i < out.input.size(); ++i) out.input[i] += pre * streams[j][i];
  }
  if (m.size() == n) return out;  // the mixer of the head
  for (size_t j = 0; j < n; ++j) out.post.push_back(2 * Sigmoid(m[n + j]));
  for (size_t a = 0; a < n; ++a) {
    Vector row = Slice(m, 2 * n + a * n, n);
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double& value : row) sum += value = std::exp(value - largest);
    for (double& value : row) value = value / sum + config_->mix_eps;
    out.comb.push_back(row);
  }
  const auto columns = [&] {
    for (size_t b = 0; b < n; ++b) {
      double sum = config_->mix_eps;
      for (size_t a = 0; a < n; ++a) sum += out.comb[a][b];
      for (size_t a = 0; a < n; ++a) out.comb[a][b] /= sum;
    }
  };
  columns();
  for (size_t i = 1; i < config_->iterations; ++i) {
    for (Vector& row : out.comb) {
      const double sum = std::accumulate(row.begin(), row.end(), config_->mix_eps);
      for (double& value : row) value /= sum;
    }
    columns();
  }
  return out;
}

// Takes in a token; closes a group at its last one.
void Dsv4Reference::Compress(Compressor& c, const Layer& layer, const Vector& a, bool index,
                             Dsv4Trace& trace) {
  const size_t r = layer.ratio;
  const size_t width = c.norm.size();
  Vector scores = Multiply(c.scores, a);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] += c.bias.values.at(position_ % r * scores.size() + i);
  }
  c.token_values.push_back(Multiply(c.values, a));
  c.token_scores.push_back(scores);
  if ((position_ + 1) % r != 0) return;

  // Entries: positions and the half of their numbers that takes part.
  const size_t first = position_ + 1 - r;
  std::vector<std::pair<size_t, size_t>> entries;
  const size_t own_half = r == 4 ? width : 0;
  if (r == 4 && first > 0) {
    for (size_t t = first - r; t < first; ++t) entries.emplace_back(t, 0);
  }
  for (size_t t = first; t <= position_; ++t) entries.emplace_back(t, own_half);
  Vector row(width, 0.0);
  for (size_t i = 0; i < width; ++i) {
    double largest = -kInfinity;
    for (const auto& [t, half] : entries) largest = std::max(largest, c.token_scores[t][half + i]);
    double sum = 0;
    for (const auto& [t, half] : entries) {
      const double weight = std::exp(c.token_scores[t][half + i] - largest);
      sum += weight;
      row[i] += weight * c.token_values[t][half + i];
    }
    row[i] /= sum;
  }
  row = Turn(Rms(row, c.norm), first, true, 1);
  if (index) {
    row = HadamardProduct(row);
    RoundIndex(row, trace);
  } else {
    RoundRow(row, trace);
  }
  c.rows.push_back(row);
}

// The compressed rows that this token attends to.
std::vector<int> Dsv4Reference::PickRows(Layer& layer, const Vector& a, const Vector& latent,
                                         Dsv4Trace& trace) {
  trace.index_gap.push_back(kInfinity);
  std::vector<int> all(layer.compressor.rows.size());
  std::iota(all.begin(), all.end(), 0);
  if (layer.ratio != 4) return all;
  const size_t width = config_->index_dim;
  const Vector queries = Multiply(layer.index_query, latent);
  const Vector shares = Multiply(layer.index_weights, a);
  Vector scores(all.size(), 0.0);
  for (size_t h = 0; h < config_->index_heads; ++h) {
    Vector query = HadamardProduct(Turn(Slice(queries, h * width, width), position_, true, 1));
    RoundIndex(query, trace);
    const double share = shares[h] / std::sqrt(static_cast<double>(width)) /
                         std::sqrt(static_cast<double>(config_->index_heads));
    for (size_t t = 0; t < scores.size(); ++t) {
      scores[t] += std::max(0.0, Dot(query, layer.index.rows[t])) * share;
    }
  }
  if (all.size() <= config_->index_topk) return all;
  std::vector<int> order = Ranking(scores);
  const size_t k = config_->index_topk;
  const double gap =
      scores[static_cast<size_t>(order[k - 1])] - scores[static_cast<size_t>(order[k])];
  // Rows that score nothing are chosen by their index in any arithmetic.
  if (gap > 0 || scores[static_cast<size_t>(order[k])] != 0) trace.index_gap.back() = gap;
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

Vector Dsv4Reference::Attention(Layer& layer, const Vector& a, Dsv4Trace& trace) {
  const size_t d = config_->head_dim;
  const bool compressed = layer.ratio > 0;
  const Vector latent = Rms(Multiply(layer.q_a, a), layer.q_norm);
  Vector own = Turn(Rms(Multiply(layer.kv, a), layer.kv_norm), position_, compressed, 1);
  RoundRow(own, trace);
  layer.window.push_back(own);
  if (compressed) Compress(layer.compressor, layer, a, false, trace);
  if (layer.ratio == 4) Compress(layer.index, layer, a, true, trace);
  const std::vector<int> picks = PickRows(layer, a, latent, trace);
  trace.rows.push_back(picks);

  std::vector<const Vector*> rows;
  const size_t seen = std::min(position_ + 1, config_->window);
  for (size_t t = position_ + 1 - seen; t <= position_; ++t) rows.push_back(&layer.window[t]);
  for (const int pick : picks) rows.push_back(&layer.compressor.rows[static_cast<size_t>(pick)]);

  const Vector queries = Multiply(layer.q_b, latent);
  Vector heads;
  for (size_t h = 0; h < config_->heads; ++h) {
    Vector query = Slice(queries, h * d, d);
    const double unit = 1.0 / std::sqrt(MeanSquare(query) + config_->eps);
    for (double& value : query) value *= unit;
    query = Turn(query, position_, compressed, 1);
    Vector scores;
    double largest = layer.sink[h];
    for (const Vector* row : rows) {
      scores.push_back(Dot(query, *row) / std::sqrt(static_cast<double>(d)));
      largest = std::max(largest, scores.back());
    }
    double sum = std::exp(layer.sink[h] - largest);
    Vector out(d, 0.0);
    for (size_t t = 0; t < rows.size(); ++t) {
      const double weight = std::exp(scores[t] - largest);
      sum += weight;
      for (size_t i = 0; i < d; ++i) out[i] += weight * (*rows[t])[i];
    }
    for (double& value : out) value /= sum;
    out = Turn(out, position_, compressed, -1);
    heads.insert(heads.end(), out.begin(), out.end());
  }
  // Group g: its part of the heads through its rows of the first output matrix.
  const size_t width = heads.size() / config_->groups;
  const size_t rank = layer.out_a.rows / config_->groups;
  Vector mixed(layer.out_a.rows, 0.0);
  for (size_t r = 0; r < mixed.size(); ++r) {
    for (size_t c = 0; c < width; ++c) {
      mixed[r] += layer.out_a.values[r * width + c] * heads[r / rank * width + c];
    }
  }
  return Multiply(layer.out_b, mixed);
}

Vector Dsv4Reference::Expert(const Matrix& w1, const Matrix& w3, const Matrix& w2, const Vector& b,
                             double weight) const {
  Vector gate = Multiply(w1, b);
  const Vector up = Multiply(w3, b);
  const double limit = config_->limit > 0 ? config_->limit : kInfinity;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = std::min(gate[i], limit);
    gate[i] = weight * g * Sigmoid(g) * std::clamp(up[i], -limit, limit);
  }
  return Multiply(w2, gate);
}

Vector Dsv4Reference::Experts(const Layer& layer, const Vector& b, int token,
                              Dsv4Trace& trace) const {
  const size_t k = config_->top_k;
  Vector scores = Multiply(layer.router, b);
  for (double& value : scores) value = std::sqrt(value > 30 ? value : std::log1p(std::exp(value)));
  std::vector<int> picks;
  trace.router_gap.push_back(kInfinity);
  if (layer.hashed) {
    const auto begin =
        layer.table.begin() + static_cast<std::ptrdiff_t>(token) * static_cast<std::ptrdiff_t>(k);
    picks.assign(begin, begin + static_cast<std::ptrdiff_t>(k));
  } else {
    Vector keys = scores;
    for (size_t e = 0; e < keys.size(); ++e) keys[e] += layer.bias[e];
    picks = Ranking(keys);
    if (picks.size() > k) {
      trace.router_gap.back() =
          keys[static_cast<size_t>(picks[k - 1])] - keys[static_cast<size_t>(picks[k])];
    }
    picks.resize(k);
  }
  double sum = 0;
  for (const int pick : picks) sum += scores[static_cast<size_t>(pick)];
  Vector weights;
  for (const int pick : picks) {
    weights.push_back(scores[static_cast<size_t>(pick)] / std::max(sum, 1e-20) *
                      config_->routed_scale);
  }
  Vector y = Expert(layer.shared_w1, layer.shared_w3, layer.shared_w2, b, 1.0);
  for (size_t i = 0; i < k; ++i) {
    const auto e = static_cast<size_t>(picks[i]);
    const Vector part = Expert(layer.w1[e], layer.w3[e], layer.w2[e], b, weights[i]);
    for (size_t c = 0; c < y.size(); ++c) y[c] += part[c];
  }
  trace.experts.push_back(picks);
  trace.weights.push_back(weights);
  return y;
}

Dsv4Trace Dsv4Reference::Feed(int token) {
  const size_t n = config_->streams;
  const size_t d = config_->hidden;
  Dsv4Trace trace;
  const Vector embedded = Slice(embedding_.values, static_cast<size_t>(token) * d, d);
  std::vector<Vector> streams(n, embedded);
  const auto write = [&](const Mixed& mix, const Vector& y) {
    std::vector<Vector> next(n, Vector(d, 0.0));
    for (size_t b = 0; b < n; ++b) {
      for (size_t i = 0; i < d; ++i) {
        next[b][i] = mix.post[b] * y[i];
        for (size_t a = 0; a < n; ++a) next[b][i] += mix.comb[a][b] * streams[a][i];
      }
    }
    streams = next;
  };
  for (Layer& layer : layers_) {
    const Mixed before = Mix(layer.attention_mixer, streams);
    trace.attention.push_back(Attention(layer, Rms(before.input, layer.attention_norm), trace));
    write(before, trace.attention.back());
    const Mixed between = Mix(layer.ffn_mixer, streams);
    trace.feed_forward.push_back(Experts(layer, Rms(between.input, layer.ffn_norm), token, trace));
    write(between, trace.feed_forward.back());
    Vector flat;
    for (const Vector& stream : streams) flat.insert(flat.end(), stream.begin(), stream.end());
    trace.hidden.push_back(flat);
  }
  trace.logits = Multiply(head_, Rms(Mix(*head_mixer_, streams).input, final_norm_));
  ++position_;
  return trace;
}

}  // namespace mk::reference
