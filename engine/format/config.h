// MkimConfig: the configuration block of an MKIM model, typed and checked.
//
// Every key is optional in the file; the initialisers below are what a missing key means, and they
// are the whole configuration of an MKIM0001 file. Dimensions are counts, not bytes.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/dsv4_config.h"

namespace mk {

enum class Architecture {
  kK3,          // Kimi K3: KDA and MLA attention, latent routed experts
  kDeepSeekV4,  // DeepSeek-V4
};
std::string_view ArchitectureName(Architecture arch);  // "k3", "deepseek_v4"

enum class AttentionKind { kKda, kMla };
enum class FeedForwardKind { kDense, kMoe };

// What the entries of A_log stand for in the decay of KDA.
enum class ALogReading {
  kChannel,  // [kda_dim], one per channel, shared by the heads
  kHead,     // [kda_heads], one per head, shared by the channels
};

// Guard of the L2 normalisation of KDA queries and keys.
enum class KdaL2 {
  kMax,  // x / max(|x|, 1e-12)
  kSum,  // x / sqrt(|x|^2 + 1e-6)
};

// Ids in the model's vocabulary. -1: not given.
struct SpecialIds {
  int32_t bos = 163584;
  int32_t end_of_msg = 163586;
  int32_t eos = -1;
  int32_t open = -1;
  int32_t close = -1;
  int32_t sep = -1;
  int32_t unk = -1;
  int32_t pad = -1;
};

struct MkimConfig {
  Architecture arch = Architecture::kK3;
  uint32_t format = 2;  // 3 admits the extension types (BF16)

  uint32_t n_layers = 93;
  uint32_t hidden = 512;     // d, width of the residual stream
  uint32_t vocab = 163840;   // rows of embedding and head
  uint32_t n_experts = 896;  // routed experts per MoE layer
  uint32_t top_k = 16;       // routed experts per token
  uint32_t n_shared = 2;     // informative: already folded into shared_inter

  uint32_t kda_heads = 4;
  uint32_t kda_dim = 128;  // head size, keys and values alike
  uint32_t kda_conv = 4;   // taps of the short convolutions, 2..16
  uint32_t kda_fa_rank = 128;
  float gate_lower_bound = -5.0f;  // most negative log-decay per step

  uint32_t mla_heads = 4;
  uint32_t mla_q_lora = 128;
  uint32_t mla_kv_lora = 64;
  uint32_t mla_nope = 128;
  uint32_t mla_rope = 64;  // shared key part, never rotated; may be 0
  uint32_t mla_v = 128;

  uint32_t routed_hidden = 128;  // latent width of routed experts
  uint32_t moe_inter = 64;       // inner width of a routed expert
  uint32_t shared_inter = 128;   // inner width of all shared experts together
  uint32_t dense_inter = 2048;

  uint32_t attn_res_block = 12;  // layers per residual block
  uint32_t first_k_dense = 1;
  float rms_eps = 1e-5f;

  float situ_beta = 4.0f;
  float situ_linear_beta = 25.0f;
  float routed_scale = 1.0f;
  KdaL2 kda_l2 = KdaL2::kMax;
  // What the config says; absent in old files. When it is, MkimFile::Open finds `a_log` out from
  // the tensors (with Checks::kModel).
  std::optional<ALogReading> kda_a_log;
  ALogReading a_log = ALogReading::kChannel;

  SpecialIds specials;
  std::string tokenizer;       // label, "" when absent; "bytes" = byte tokenizer
  std::string content_sha256;  // 64 lower-case hex digits, "" when absent; see verify.h

  // One entry per layer, resolved from mla_layers / dense_layers or from the patterns: layer l is
  // MLA when l % 4 == 3 or l is the last, dense when l < first_k_dense. K3 only.
  std::vector<AttentionKind> attention;
  std::vector<FeedForwardKind> feed_forward;

  DeepSeekConfig ds;  // DeepSeek-V4 only

  // Width of the concatenated KDA heads, P.
  uint32_t kda_width() const { return kda_heads * kda_dim; }
  // Width of one MLA query or key.
  uint32_t mla_qk() const { return mla_nope + mla_rope; }
  bool IsMla(uint32_t layer) const { return attention[layer] == AttentionKind::kMla; }
  bool IsDense(uint32_t layer) const { return feed_forward[layer] == FeedForwardKind::kDense; }
  uint32_t CountMla() const;
  uint32_t CountDense() const;
  // Whether caches and head can be held in groups of 32 8-bit values.
  bool FitsQ8KvCache() const { return mla_nope % 32 == 0 && mla_v % 32 == 0; }
  bool FitsQ8Head() const { return hidden % 32 == 0; }
};

struct ConfigOptions {
  // Refuse a K3 config that leaves out a dimension instead of taking the default with a warning.
  bool require_all_dimensions = false;
};

// The MKIM0001 configuration, layer kinds resolved.
MkimConfig DefaultConfig();

// How A_log of `elements` values is to be read. The config key decides when it is there; else the
// number of values tells kda_heads from kda_dim; where these are equal the answer is per channel,
// with a warning. Errors: kCorrupt when the count fits neither or contradicts the key.
Result<ALogReading> ResolveALog(const MkimConfig& config, uint64_t elements,
                                const std::string& tensor, std::vector<std::string>& warnings);

// Parses and checks a config block. `what` names it in messages. Unknown keys and defaults taken
// for missing dimensions are reported in `warnings`. For DeepSeek-V4 `ds` and the fields that both
// architectures have are set (n_layers, vocab, hidden, n_experts, top_k, moe_inter, rms_eps,
// routed_scale, specials). Errors: kCorrupt (malformed or contradictory), kUnsupported (an
// architecture or format that this engine does not run).
Result<MkimConfig> ParseConfig(std::string_view json, const std::string& what,
                               const ConfigOptions& options, std::vector<std::string>& warnings);

}  // namespace mk
