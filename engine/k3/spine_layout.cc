#include <initializer_list>
#include <string>

#include "engine/k3/spine.h"

namespace mk::k3 {
namespace {

class Layout {
 public:
  Layout(SpineBuilder& builder, const K3Shape& shape, Precision precision)
      : build_(builder), shape_(shape), kinds_(precision) {}

  std::unique_ptr<K3Weights> Spine() {
    const size_t d = shape_.hidden;
    auto weights = std::make_unique<K3Weights>();
    K3Weights& w = *weights;
    w.head = Stack({{"lm_head.weight", shape_.vocab}}, d);
    w.final_norm = build_.Table("norm.weight", 1, d);
    w.output_mix = build_.Product("output_attn_res_norm.weight", "output_attn_res_proj.weight", d);
    for (size_t l = 0; l < shape_.layers; ++l) {
      w.layers.push_back(Layer(l));
    }
    return weights;
  }

 private:
  LayerWeights Layer(size_t l) {
    const size_t d = shape_.hidden;
    LayerWeights w;
    const std::string layer = "layers." + std::to_string(l) + ".";
    build_.SetPrefix(layer);
    w.input_norm = build_.Table("input_layernorm.weight", 1, d);
    w.post_norm = build_.Table("post_attention_layernorm.weight", 1, d);
    w.attention_mix =
        build_.Product("self_attention_res_norm.weight", "self_attention_res_proj.weight", d);
    w.mlp_mix = build_.Product("mlp_res_norm.weight", "mlp_res_proj.weight", d);
    build_.SetPrefix(layer + "self_attn.");
    if (shape_.attention[l] == AttentionKind::kKda) {
      w.kda = Kda();
    } else {
      w.mla = Mla();
    }
    if (shape_.feed_forward[l] == FeedForwardKind::kDense) {
      build_.SetPrefix(layer + "mlp.");
      const size_t inner = shape_.dense_inner;
      w.dense.input = Stack({{"gate_proj.weight", inner}, {"up_proj.weight", inner}}, d);
      w.dense.output = Stack({{"down_proj.weight", d}}, inner);
    } else {
      build_.SetPrefix(layer + "block_sparse_moe.");
      w.moe = Moe();
    }
    return w;
  }

  KdaWeights Kda() {
    const size_t d = shape_.hidden;
    const size_t p = shape_.kda_width;
    KdaWeights w;
    w.input = Stack({{"q_proj.weight", p},
                     {"k_proj.weight", p},
                     {"v_proj.weight", p},
                     {"g_proj.weight", p},
                     {"f_a_proj.weight", shape_.decay_rank},
                     {"b_proj.weight", shape_.kda_heads}},
                    d);
    w.decay = build_.Stack(kinds_.never_bytes, {{"f_b_proj.weight", p}}, shape_.decay_rank);
    w.output = Stack({{"o_proj.weight", d}}, p);
    w.conv = Convolutions();
    w.decay_bias = build_.Table("dt_bias", 1, p);
    w.decay_rate = DecayRate();
    w.norm = build_.Table("o_norm.weight", 1, shape_.kda_dim);
    return w;
  }

  MlaWeights Mla() {
    const size_t d = shape_.hidden;
    const size_t heads = shape_.mla_heads;
    MlaWeights w;
    w.input = Stack({{"q_a_proj.weight", shape_.query_rank},
                     {"kv_a_proj_with_mqa.weight", shape_.latent_row()},
                     {"g_proj.weight", heads * shape_.value}},
                    d);
    w.query = Stack({{"q_b_proj.weight", heads * shape_.qk}}, shape_.query_rank);
    w.output = Stack({{"o_proj.weight", d}}, heads * shape_.value);
    w.query_norm = build_.Table("q_a_layernorm.weight", 1, shape_.query_rank);
    w.latent_norm = build_.Table("kv_a_layernorm.weight", 1, shape_.kv_rank);
    KeyValueHeads(w);
    return w;
  }

  MoeWeights Moe() {
    const size_t d = shape_.hidden;
    MoeWeights w;
    w.router = Stack({{"gate.weight", shape_.experts}}, d);
    w.input = Stack({{"routed_expert_down_proj.weight", shape_.routed_width},
                     {"shared_experts.gate_proj.weight", shape_.shared_inner},
                     {"shared_experts.up_proj.weight", shape_.shared_inner}},
                    d);
    w.routed_up = Stack({{"routed_expert_up_proj.weight", d}}, shape_.routed_width);
    w.shared_down = Stack({{"shared_experts.down_proj.weight", d}}, shape_.shared_inner);
    w.bias = build_.Table("gate.e_score_correction_bias", 1, shape_.experts);
    w.routed_norm = build_.Table("routed_expert_norm.weight", 1, shape_.routed_width);
    return w;
  }

  PackedMatrix Stack(std::initializer_list<SpineBuilder::Part> parts, size_t cols) {
    return build_.Stack(kinds_.plain, parts, cols);
  }

  static const float* Floats(std::span<const std::byte> memory) {
    return reinterpret_cast<const float*>(memory.data());
  }

  Vector DecayRate() {
    const bool per_head = build_.file().config().a_log == ALogReading::kHead;
    SpinePiece piece;
    piece.kind = per_head ? SpinePiece::Kind::kExpSpread : SpinePiece::Kind::kExpTile;
    piece.count = per_head ? shape_.kda_heads : shape_.kda_dim;
    piece.tensor = build_.Find("A_log", piece.count);
    piece.destination = build_.TakeFloats(shape_.kda_width);
    build_.Add(piece);
    return {Floats(piece.destination), shape_.kda_width};
  }

  const float* Convolutions() {
    const size_t floats = shape_.kda_width * shape_.conv_taps;
    const std::span<std::byte> all = build_.TakeFloats(3 * floats);
    const char* const names[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    for (size_t stream = 0; stream < 3; ++stream) {
      SpinePiece piece;
      piece.kind = SpinePiece::Kind::kTranspose;
      piece.tensor = build_.Find(names[stream], floats);
      piece.count = floats;
      piece.cols = shape_.conv_taps;
      if (!all.empty()) {
        piece.destination = all.subspan(stream * floats * sizeof(float), floats * sizeof(float));
      }
      build_.Add(piece);
    }
    return Floats(all);
  }

  // Wkvb [M (n + v), r_kv]: per head n key rows, then v value rows.
  void KeyValueHeads(MlaWeights& w) {
    const size_t rank = shape_.kv_rank;
    const size_t head_rows = shape_.nope + shape_.value;
    const size_t all_rows = shape_.mla_heads * head_rows;
    const WeightKind kind = kinds_.never_bytes;
    SpinePiece piece;
    piece.kind = SpinePiece::Kind::kPackTransposed;
    piece.tensor = build_.Find("kv_b_proj.weight", all_rows * rank);
    piece.cols = rank;
    piece.packing = kind;
    piece.count = shape_.nope * rank;
    for (size_t h = 0; h < shape_.mla_heads; ++h) {
      piece.first = static_cast<uint64_t>(h) * head_rows * rank;
      piece.destination = build_.Take(PackedBytes(kind, shape_.nope, rank));
      piece.second = build_.Take(PackedBytes(kind, rank, shape_.nope));
      w.key.push_back({kind, piece.destination.data(), shape_.nope, rank});
      w.key_transposed.push_back({kind, piece.second.data(), rank, shape_.nope});
      build_.Add(piece);
      w.value.push_back(build_.Rows(kind, "kv_b_proj.weight", all_rows, h * head_rows + shape_.nope,
                                    shape_.value, rank));
    }
  }

  SpineBuilder& build_;
  const K3Shape& shape_;
  const SpineKinds kinds_;
};

}  // namespace

std::unique_ptr<K3Weights> LayOutSpine(SpineBuilder& builder, const K3Shape& shape,
                                       Precision precision) {
  return Layout(builder, shape, precision).Spine();
}

}  // namespace mk::k3
