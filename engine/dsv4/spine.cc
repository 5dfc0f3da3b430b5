#include "engine/dsv4/spine.h"

#include <string>

namespace mk::dsv4 {
namespace {

class Layout {
 public:
  Layout(SpineBuilder& builder, const Dsv4Shape& shape, Precision precision)
      : build_(builder), shape_(shape), kinds_(precision) {}

  std::unique_ptr<Dsv4Weights> Spine() {
    const size_t d = shape_.hidden;
    const size_t streams = shape_.streams;
    auto weights = std::make_unique<Dsv4Weights>();
    Dsv4Weights& w = *weights;
    build_.SetPrefix("");
    w.head = Stack({{"head.weight", shape_.vocab}}, d);
    w.final_norm = build_.Table("norm.weight", 1, d);
    w.head_read =
        build_.Stack(kinds_.never_bytes, {{"hc_head_fn", streams}}, shape_.stream_floats());
    w.head_base = build_.Table("hc_head_base", 1, streams);
    w.head_scale = build_.Table("hc_head_scale", 1, 1);
    for (size_t l = 0; l < shape_.layers; ++l) w.layers.push_back(Layer(l));
    return weights;
  }

 private:
  LayerWeights Layer(size_t l) {
    const size_t d = shape_.hidden;
    const std::string layer = "layers." + std::to_string(l) + ".";
    LayerWeights w;
    build_.SetPrefix(layer);
    w.attention_mixer = Mixer("hc_attn_fn", "hc_attn_base", "hc_attn_scale");
    w.ffn_mixer = Mixer("hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale");
    w.attention_norm = build_.Table("attn_norm.weight", 1, d);
    w.ffn_norm = build_.Table("ffn_norm.weight", 1, d);
    build_.SetPrefix(layer + "attn.");
    w.attention = Attention(l);
    build_.SetPrefix(layer + "ffn.");
    w.moe = Moe(l);
    return w;
  }

  MixerWeights Mixer(const char* numbers, const char* base, const char* scale) {
    const size_t rows = shape_.mixer_rows();
    return {build_.Stack(kinds_.never_bytes, {{numbers, rows}}, shape_.stream_floats()),
            build_.Table(base, 1, rows), build_.Table(scale, 1, 3)};
  }

  CompressorWeights Compressor(const char* bias, const char* norm, size_t ratio, size_t width,
                               size_t halves) {
    return {build_.Table(bias, ratio, halves * width), build_.Table(norm, 1, width)};
  }

  AttentionWeights Attention(size_t l) {
    const size_t rank = shape_.query_rank;
    const size_t heads = shape_.heads_width();
    AttentionWeights w;
    w.input = InputStack(l);
    w.query_norm = build_.Table("q_norm.weight", 1, rank);
    w.query =
        shape_.indexed(l)
            ? Stack({{"wq_b.weight", heads}, {"indexer.wq_b.weight", shape_.index_width()}}, rank)
            : Stack({{"wq_b.weight", heads}}, rank);
    w.key_norm = build_.Table("kv_norm.weight", 1, shape_.head_dim);
    w.sink = build_.Table("attn_sink", 1, shape_.heads);
    if (shape_.ratio[l] > 0) {
      w.compressor = Compressor("compressor.ape", "compressor.norm.weight", shape_.ratio[l],
                                shape_.head_dim, shape_.halves(l));
    }
    if (shape_.indexed(l)) {
      w.index_compressor = Compressor("indexer.compressor.ape", "indexer.compressor.norm.weight",
                                      shape_.ratio[l], shape_.index_dim, shape_.halves(l));
    }
    const size_t rows = shape_.output_rank;
    for (size_t g = 0; g < shape_.groups; ++g) {
      w.group.push_back(build_.Rows(kinds_.plain, "wo_a.weight", shape_.groups * rows, g * rows,
                                    rows, shape_.group_width()));
    }
    w.output = Stack({{"wo_b.weight", shape_.hidden}}, shape_.groups * rows);
    return w;
  }

  // In the order of InputParts.
  PackedMatrix InputStack(size_t l) {
    const size_t d = shape_.hidden;
    const SpineBuilder::Part query{"wq_a.weight", shape_.query_rank};
    const SpineBuilder::Part key_value{"wkv.weight", shape_.head_dim};
    if (shape_.ratio[l] == 0) return Stack({query, key_value}, d);
    const size_t width = shape_.compressor_width(l);
    const SpineBuilder::Part values{"compressor.wkv.weight", width};
    const SpineBuilder::Part scores{"compressor.wgate.weight", width};
    if (!shape_.indexed(l)) return Stack({query, key_value, values, scores}, d);
    return Stack({query,
                  key_value,
                  values,
                  scores,
                  {"indexer.compressor.wkv.weight", 2 * shape_.index_dim},
                  {"indexer.compressor.wgate.weight", 2 * shape_.index_dim},
                  {"indexer.weights_proj.weight", shape_.index_heads}},
                 d);
  }

  MoeWeights Moe(size_t l) {
    const size_t d = shape_.hidden;
    const size_t inner = shape_.expert_inner;
    MoeWeights w;
    w.router = Stack({{"gate.weight", shape_.experts}}, d);
    if (l >= shape_.hash_layers) w.bias = build_.Table("gate.bias", 1, shape_.experts);
    w.shared_input =
        Stack({{"shared_experts.w1.weight", inner}, {"shared_experts.w3.weight", inner}}, d);
    w.shared_output = Stack({{"shared_experts.w2.weight", d}}, inner);
    return w;
  }

  PackedMatrix Stack(std::initializer_list<SpineBuilder::Part> parts, size_t cols) {
    return build_.Stack(kinds_.plain, parts, cols);
  }

  SpineBuilder& build_;
  const Dsv4Shape& shape_;
  const SpineKinds kinds_;
};

}  // namespace

std::unique_ptr<Dsv4Weights> LayOutSpine(SpineBuilder& builder, const Dsv4Shape& shape,
                                         Precision precision) {
  return Layout(builder, shape, precision).Spine();
}

void LayOutTables(SpineBuilder& builder, const Dsv4Shape& shape, Dsv4Tables& tables) {
  tables.embedding = builder.Table("embed.weight", shape.vocab, shape.hidden).data();
  tables.hash.clear();
  for (size_t l = 0; l < shape.hash_layers; ++l) {
    builder.SetPrefix("layers." + std::to_string(l) + ".ffn.");
    tables.hash.push_back(builder.Integers("gate.tid2eid", shape.vocab, shape.top_k));
  }
}

}  // namespace mk::dsv4
