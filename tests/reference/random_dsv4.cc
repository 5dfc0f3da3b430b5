#include "tests/reference/random_dsv4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <vector>

#include "engine/format/digest.h"

namespace mk::reference {
namespace {

// Philox 4x64 with 10 rounds; counters from 1 on, four words each.
class Philox {
 public:
  explicit Philox(std::array<uint64_t, 2> key) : key_(key) {}

  uint64_t Next() {
    if (used_ == 4) {
      ++counter_;
      block_ = Block(counter_);
      used_ = 0;
    }
    return block_[used_++];
  }

 private:
  std::array<uint64_t, 4> Block(uint64_t counter) const {
    std::array<uint64_t, 4> c = {counter, 0, 0, 0};
    std::array<uint64_t, 2> k = key_;
    for (int round = 0; round < 10; ++round) {
      const unsigned __int128 a = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * c[0];
      const unsigned __int128 b = static_cast<unsigned __int128>(0xCA5A826395121157u) * c[2];
      c = {static_cast<uint64_t>(b >> 64) ^ c[1] ^ k[0], static_cast<uint64_t>(b),
           static_cast<uint64_t>(a >> 64) ^ c[3] ^ k[1], static_cast<uint64_t>(a)};
      k[0] += 0x9E3779B97F4A7C15u;
      k[1] += 0xBB67AE8584CAA73Bu;
    }
    return c;
  }

  std::array<uint64_t, 2> key_;
  uint64_t counter_ = 0;
  std::array<uint64_t, 4> block_{};
  size_t used_ = 4;
};

uint8_t HexDigit(char c) {
  return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10);
}

Philox WordsOf(uint64_t seed, const std::string& name) {
  const std::string text = std::to_string(seed) + "|" + name;
  Sha256Digest digest;
  digest.Update(std::as_bytes(std::span(text)));
  const std::string hex = digest.FinishHex();
  std::array<uint64_t, 2> key{};
  for (size_t i = 0; i < 16; ++i) {
    const uint64_t byte = HexDigit(hex[2 * i]) * 16u + HexDigit(hex[2 * i + 1]);
    key[i / 8] |= byte << (8 * (i % 8));
  }
  return Philox(key);
}

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
  ModelWriter(const nlohmann::ordered_json& config, uint64_t seed, const Dsv4Damping& damping)
      : config_(config), ds_(config.at("ds")), seed_(seed), outputs_(damping.outputs) {}

  void Build() {
    const uint32_t d = Dim("hidden");
    const uint32_t vocab = Dim("vocab");
    Bell("embed.weight", "embed", {vocab, d}, 1.0, 0.0);
    // Special ids never win.
    Bell("head.weight", "head", {vocab, d}, 3.0 / Root(d), 0.0);
    std::vector<uint8_t>& head = entries_.back().bytes;
    std::fill(head.end() - static_cast<ptrdiff_t>(8 * d * sizeof(float)), head.end(), 0);
    Vector("norm.weight", d, 1.0, 0.1);
    const uint32_t streams = ds_.value("hc_mult", 4u);
    Matrix("hc_head_fn", streams, streams * d);
    Vector("hc_head_base", streams, 0.0, 0.3);
    Vector("hc_head_scale", 1, 1.0, 0.1);
    for (uint32_t l = 0; l < Dim("n_layers"); ++l) Layer(l);
    for (uint32_t l = 0; l < Dim("n_layers"); ++l) Experts(l);
  }

  void Write(const std::string& path) const {
    const std::string json = config_.dump();
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
  static double Root(double x) { return std::sqrt(x); }
  uint32_t Dim(const char* key) const { return ds_.at(key).get<uint32_t>(); }

  // The sum of four uniforms on 0..65535 has the mean 131070 and the deviation 37837.23.
  void Bell(const std::string& name, const std::string& words, std::vector<uint32_t> dims,
            double deviation, double mean) {
    size_t count = 1;
    for (const uint32_t dim : dims) count *= dim;
    Entry entry{name, 0, std::move(dims), {}};
    Philox random = WordsOf(seed_, words);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t word = random.Next();
      int64_t sum = -131070;
      for (int lane = 0; lane < 4; ++lane)
        sum += static_cast<int64_t>(word >> (16 * lane) & 0xffff);
      Append(entry.bytes,
             static_cast<float>(static_cast<double>(sum) * (deviation / 37837.23) + mean));
    }
    entries_.push_back(std::move(entry));
  }

  void Vector(const std::string& name, uint32_t size, double mean, double deviation) {
    Bell(name, name, {size}, deviation, mean);
  }
  void Matrix(const std::string& name, uint32_t rows, uint32_t cols, double gain = 1.0) {
    Bell(name, name, {rows, cols}, gain / Root(cols), 0.0);
  }

  void Layer(uint32_t l) {
    const uint32_t d = Dim("hidden");
    const uint32_t streams = ds_.value("hc_mult", 4u);
    const uint32_t numbers = (2 + streams) * streams;
    const std::string prefix = "layers." + std::to_string(l) + ".";
    Vector(prefix + "attn_norm.weight", d, 1.0, 0.1);
    Vector(prefix + "ffn_norm.weight", d, 1.0, 0.1);
    for (const std::string part : {"attn", "ffn"}) {
      Matrix(prefix + "hc_" + part + "_fn", numbers, streams * d);
      Vector(prefix + "hc_" + part + "_base", numbers, 0.0, 0.5);
      Vector(prefix + "hc_" + part + "_scale", 3, 1.0, 0.1);
    }
    Attention(prefix + "attn.", l);
    FeedForward(prefix + "ffn.", l);
  }

  void Attention(const std::string& prefix, uint32_t l) {
    const uint32_t d = Dim("hidden");
    const uint32_t rank = Dim("q_lora_rank");
    const uint32_t width = Dim("n_heads") * Dim("head_dim");
    const uint32_t groups = Dim("o_groups");
    Matrix(prefix + "wq_a.weight", rank, d);
    Vector(prefix + "q_norm.weight", rank, 1.0, 0.1);
    Matrix(prefix + "wq_b.weight", width, rank);
    Matrix(prefix + "wkv.weight", Dim("head_dim"), d);
    Vector(prefix + "kv_norm.weight", Dim("head_dim"), 1.0, 0.1);
    Matrix(prefix + "wo_a.weight", groups * Dim("o_lora_rank"), width / groups, 1.3);
    Matrix(prefix + "wo_b.weight", d, groups * Dim("o_lora_rank"), 1.3 * outputs_);
    Vector(prefix + "attn_sink", Dim("n_heads"), 0.0, 0.5);
    const auto& ratios = ds_.at("compress_ratios");
    const uint32_t ratio = l < ratios.size() ? ratios[l].get<uint32_t>() : 0;
    if (ratio == 0) return;
    Compressor(prefix + "compressor.", ratio, (ratio == 4 ? 2 : 1) * Dim("head_dim"),
               Dim("head_dim"));
    if (ratio != 4) return;
    const uint32_t heads = Dim("index_n_heads");
    const uint32_t index = Dim("index_head_dim");
    Matrix(prefix + "indexer.wq_b.weight", heads * index, rank);
    Matrix(prefix + "indexer.weights_proj.weight", heads, d);
    Compressor(prefix + "indexer.compressor.", ratio, 2 * index, index);
  }

  void Compressor(const std::string& prefix, uint32_t ratio, uint32_t columns, uint32_t width) {
    const uint32_t d = Dim("hidden");
    Matrix(prefix + "wkv.weight", columns, d);
    Matrix(prefix + "wgate.weight", columns, d);
    Matrix(prefix + "ape", ratio, columns, Root(columns) * 0.5);
    Vector(prefix + "norm.weight", width, 1.0, 0.1);
  }

  void FeedForward(const std::string& prefix, uint32_t l) {
    const uint32_t d = Dim("hidden");
    const uint32_t experts = Dim("n_routed_experts");
    const uint32_t inner = Dim("moe_intermediate_size");
    Matrix(prefix + "gate.weight", experts, d, 1.5);
    if (l < Dim("num_hash_layers")) {
      HashTable(prefix + "gate.tid2eid");
    } else {
      Vector(prefix + "gate.bias", experts, 0.0, 0.05);
    }
    Matrix(prefix + "shared_experts.w1.weight", inner, d, 1.4);
    Matrix(prefix + "shared_experts.w2.weight", d, inner, 1.4 * outputs_);
    Matrix(prefix + "shared_experts.w3.weight", inner, d, 1.4);
  }

  // Per token the first of a random order of all experts.
  void HashTable(const std::string& name) {
    const uint32_t vocab = Dim("vocab");
    const uint32_t experts = Dim("n_routed_experts");
    const uint32_t picks = Dim("num_experts_per_tok");
    Entry entry{name, 2, {vocab, picks}, {}};
    Philox random = WordsOf(seed_, name);
    std::vector<uint64_t> keys(experts);
    std::vector<int32_t> order(experts);
    for (uint32_t token = 0; token < vocab; ++token) {
      for (uint64_t& key : keys) key = random.Next();
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)];
      });
      for (uint32_t i = 0; i < picks; ++i) Append(entry.bytes, order[i]);
    }
    entries_.push_back(std::move(entry));
  }

  // All matrices of one part in a row of words; the scales lie around that of the deviation.
  std::vector<std::vector<uint8_t>> CodedParts(const std::string& name, uint32_t rows,
                                               uint32_t cols, double deviation) {
    const size_t nibbles = size_t{rows} * cols / 2;
    const size_t scales = size_t{rows} * cols / 32;
    Philox random = WordsOf(seed_, name);
    uint64_t word = 0;
    size_t taken = 0;
    const auto next_byte = [&] {
      if (taken % 8 == 0) word = random.Next();
      return static_cast<uint8_t>(word >> (8 * (taken++ % 8)));
    };
    int exponent = 0;
    const double spread = 2.926;  // deviation of the 16 values of e2m1
    while (std::ldexp(spread, exponent) > deviation * 1.41) --exponent;
    while (std::ldexp(spread, exponent) < deviation / 1.41) ++exponent;
    std::vector<std::vector<uint8_t>> blobs(Dim("n_routed_experts"));
    constexpr int kStep[4] = {-1, 0, 0, 1};
    for (std::vector<uint8_t>& blob : blobs) {
      for (size_t i = 0; i < nibbles; ++i) blob.push_back(next_byte());
      for (size_t i = 0; i < scales; ++i) {
        blob.push_back(static_cast<uint8_t>(exponent + 127 + kStep[next_byte() & 3]));
      }
    }
    return blobs;
  }

  void Experts(uint32_t l) {
    const uint32_t d = Dim("hidden");
    const uint32_t inner = Dim("moe_intermediate_size");
    const std::string prefix = "layers." + std::to_string(l) + ".ffn.experts.";
    struct Part {
      const char* name;
      uint32_t rows, cols;
      std::vector<std::vector<uint8_t>> blobs;
    };
    std::vector<Part> parts;
    const auto add = [&](const char* name, uint32_t rows, uint32_t cols, double gain) {
      parts.push_back({name, rows, cols, CodedParts(prefix + name, rows, cols, gain / Root(cols))});
    };
    add("w1", inner, d, 1.4);
    add("w2", d, inner, 1.2 * outputs_);
    add("w3", inner, d, 1.4);
    for (uint32_t e = 0; e < Dim("n_routed_experts"); ++e) {
      for (Part& part : parts) {
        entries_.push_back({prefix + std::to_string(e) + "." + part.name,
                            1,
                            {part.rows, part.cols},
                            std::move(part.blobs[e])});
      }
    }
  }

  const nlohmann::ordered_json& config_;
  const nlohmann::ordered_json& ds_;
  const uint64_t seed_;
  const double outputs_;
  std::vector<Entry> entries_;
};

}  // namespace

nlohmann::ordered_json AwkwardDsv4Config() {
  const uint32_t vocab = 330;
  nlohmann::ordered_json config = {{"arch", "deepseek_v4"},
                                   {"vocab", vocab},
                                   {"n_layers", 6},
                                   {"specials", {{"bos", vocab - 8}, {"end_of_msg", vocab - 7}}},
                                   {"ds",
                                    {{"n_layers", 6},
                                     {"hidden", 96},
                                     {"vocab", vocab},
                                     {"n_heads", 6},
                                     {"head_dim", 112},
                                     {"qk_rope_head_dim", 24},
                                     {"q_lora_rank", 40},
                                     {"o_lora_rank", 20},
                                     {"o_groups", 3},
                                     {"sliding_window", 21},
                                     {"compress_ratios", {0, 4, 8, 4, 0, 16}},
                                     {"rope_theta", 5000},
                                     {"compress_rope_theta", 90000},
                                     {"index_n_heads", 5},
                                     {"index_head_dim", 64},
                                     {"index_topk", 7},
                                     {"n_routed_experts", 13},
                                     {"num_experts_per_tok", 3},
                                     {"moe_intermediate_size", 64},
                                     {"num_hash_layers", 2},
                                     {"routed_scaling_factor", 2.25},
                                     {"swiglu_limit", 1.25},
                                     {"rms_norm_eps", 1e-5},
                                     {"hc_mult", 4},
                                     {"hc_sinkhorn_iters", 7},
                                     {"hc_eps", 3e-6},
                                     {"yarn_factor", 12},
                                     {"yarn_beta_fast", 24},
                                     {"yarn_beta_slow", 2},
                                     {"yarn_orig_seq_len", 4096}}}};
  return config;
}

void WriteRandomDsv4(const std::string& path, const nlohmann::ordered_json& config, uint64_t seed,
                     const Dsv4Damping& damping) {
  ModelWriter writer(config, seed, damping);
  writer.Build();
  writer.Write(path);
}

}  // namespace mk::reference
