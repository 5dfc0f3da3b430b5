#include "engine/format/dsv4_census.h"

namespace mk {
namespace {

// Of the mixers of residual streams: S numbers each for reading and writing, S x S for mixing.
uint32_t MixerRows(const DeepSeekConfig& ds) {
  return (2 + ds.hc_mult) * ds.hc_mult;
}

void ListGlobals(const MkimConfig& c, TensorLister& list) {
  list.SetPrefix("");
  list.Matrix("embed.weight", c.vocab, c.hidden);
  list.Matrix("head.weight", c.vocab, c.hidden);
  list.Vector("norm.weight", c.hidden);
  list.Small("hc_head_fn", c.ds.hc_mult, c.ds.hc_mult * c.hidden);
  list.Vector("hc_head_base", c.ds.hc_mult);
  list.Vector("hc_head_scale", 1);
}

// `halves`: 2 when groups overlap.
void ListCompressor(uint32_t hidden, uint32_t ratio, uint32_t width, uint32_t halves,
                    TensorLister& list) {
  list.Matrix("compressor.wkv.weight", halves * width, hidden);
  list.Matrix("compressor.wgate.weight", halves * width, hidden);
  list.Small("compressor.ape", ratio, halves * width);
  list.Vector("compressor.norm.weight", width);
}

void ListAttention(const MkimConfig& c, uint32_t layer, const std::string& prefix,
                   TensorLister& list) {
  const DeepSeekConfig& ds = c.ds;
  const uint32_t heads_width = ds.n_heads * ds.head_dim;
  list.SetPrefix(prefix);
  list.Matrix("wq_a.weight", ds.q_lora_rank, c.hidden);
  list.Vector("q_norm.weight", ds.q_lora_rank);
  list.Matrix("wq_b.weight", heads_width, ds.q_lora_rank);
  list.Matrix("wkv.weight", ds.head_dim, c.hidden);
  list.Vector("kv_norm.weight", ds.head_dim);
  list.Matrix("wo_a.weight", ds.o_groups * ds.o_lora_rank, heads_width / ds.o_groups);
  list.Matrix("wo_b.weight", c.hidden, ds.o_groups * ds.o_lora_rank);
  list.Vector("attn_sink", ds.n_heads);
  const uint32_t ratio = ds.compress_ratios[layer];
  if (ratio == 0) return;
  ListCompressor(c.hidden, ratio, ds.head_dim, ratio == kIndexedRatio ? 2 : 1, list);
  if (ratio != kIndexedRatio) return;
  list.SetPrefix(prefix + "indexer.");
  list.Matrix("wq_b.weight", ds.index_n_heads * ds.index_head_dim, ds.q_lora_rank);
  list.Matrix("weights_proj.weight", ds.index_n_heads, c.hidden);
  ListCompressor(c.hidden, ratio, ds.index_head_dim, 2, list);
}

void ListFeedForward(const MkimConfig& c, uint32_t layer, const std::string& prefix,
                     TensorLister& list) {
  list.SetPrefix(prefix);
  list.Matrix("gate.weight", c.n_experts, c.hidden);
  if (layer >= c.ds.n_hash_layers) list.Vector("gate.bias", c.n_experts);
  list.Matrix("shared_experts.w1.weight", c.moe_inter, c.hidden);
  list.Matrix("shared_experts.w2.weight", c.hidden, c.moe_inter);
  list.Matrix("shared_experts.w3.weight", c.moe_inter, c.hidden);
}

void ListLayer(const MkimConfig& c, uint32_t layer, TensorLister& list) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  list.SetPrefix(prefix);
  list.Vector("attn_norm.weight", c.hidden);
  list.Vector("ffn_norm.weight", c.hidden);
  for (const std::string part : {"attn", "ffn"}) {
    list.Small("hc_" + part + "_fn", MixerRows(c.ds), c.ds.hc_mult * c.hidden);
    list.Vector("hc_" + part + "_base", MixerRows(c.ds));
    list.Vector("hc_" + part + "_scale", 3);
  }
  ListAttention(c, layer, prefix + "attn.", list);
  ListFeedForward(c, layer, prefix + "ffn.", list);
}

}  // namespace

void ForEachDeepSeekSpineTensor(const MkimConfig& config, const TensorVisitor& visit) {
  TensorLister list(visit);
  ListGlobals(config, list);
  for (uint32_t l = 0; l < config.n_layers && !list.done(); ++l) ListLayer(config, l, list);
}

Status CheckDeepSeekCensus(const MkimFile& file, std::vector<std::string>& warnings) {
  const MkimConfig& config = file.config();
  TensorCensus tensors(file);
  Status status;
  ForEachDeepSeekSpineTensor(config, [&](const ExpectedTensor& expected) {
    status = tensors.CheckSpine(expected);
    return status.has_value();
  });
  for (uint32_t l = 0; l < config.n_layers && status; ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".ffn.";
    if (l < config.ds.n_hash_layers) {
      status = tensors.CheckIntegers(prefix + "gate.tid2eid", {config.vocab, config.top_k},
                                     config.n_experts);
    }
    if (status) {
      status = tensors.CheckExperts(l, prefix + "experts.", config.hidden, config.moe_inter);
    }
  }
  if (status) status = tensors.CheckCodebook();
  if (!status) return status;
  tensors.WarnUnknown(warnings);
  return {};
}

}  // namespace mk
