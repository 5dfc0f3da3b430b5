#include "engine/format/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/strict_json.h"
#include "engine/format/config_limits.h"
#include "engine/format/config_reader.h"
#include "engine/format/dsv4_config_reader.h"

namespace mk {
namespace {

using nlohmann::json;

constexpr size_t kMaxConfigDepth = 16;

// A dimension of the config: its key, where it goes, its range.
struct Dimension {
  const char* key;
  uint32_t MkimConfig::*field;
  uint32_t min;
  uint32_t max;
};

constexpr std::array<Dimension, 23> kK3Dimensions = {{
    {"n_layers", &MkimConfig::n_layers, 1, kMaxLayers},
    {"hidden", &MkimConfig::hidden, 1, kMaxWidth},
    {"vocab", &MkimConfig::vocab, 1, kMaxVocab},
    {"n_experts", &MkimConfig::n_experts, 1, kMaxExperts},
    {"top_k", &MkimConfig::top_k, 1, kMaxExperts},
    {"n_shared", &MkimConfig::n_shared, 0, kMaxExperts},
    {"kda_heads", &MkimConfig::kda_heads, 1, kMaxHeads},
    {"kda_dim", &MkimConfig::kda_dim, 1, kMaxHeads},
    {"kda_conv", &MkimConfig::kda_conv, 2, 16},
    {"kda_fa_rank", &MkimConfig::kda_fa_rank, 1, kMaxWidth},
    {"mla_heads", &MkimConfig::mla_heads, 1, kMaxHeads},
    {"mla_q_lora", &MkimConfig::mla_q_lora, 1, kMaxWidth},
    {"mla_kv_lora", &MkimConfig::mla_kv_lora, 1, kMaxWidth},
    {"mla_nope", &MkimConfig::mla_nope, 1, kMaxHeads},
    {"mla_rope", &MkimConfig::mla_rope, 0, kMaxHeads},
    {"mla_v", &MkimConfig::mla_v, 1, kMaxHeads},
    {"routed_hidden", &MkimConfig::routed_hidden, 1, kMaxWidth},
    {"moe_inter", &MkimConfig::moe_inter, 1, kMaxWidth},
    {"shared_inter", &MkimConfig::shared_inter, 1, kMaxWidth},
    {"dense_inter", &MkimConfig::dense_inter, 1, kMaxWidth},
    {"attn_res_block", &MkimConfig::attn_res_block, 1, kMaxWidth},
    {"first_k_dense", &MkimConfig::first_k_dense, 0, kMaxLayers},
    {"format", &MkimConfig::format, 1, std::numeric_limits<uint32_t>::max()},
}};

const std::unordered_set<std::string>& KnownOtherKeys() {
  static const std::unordered_set<std::string> keys = {"arch",
                                                       "ds",
                                                       "tokenizer",
                                                       "pruning",
                                                       "expert_order",
                                                       "specials",
                                                       "mla_layers",
                                                       "dense_layers",
                                                       "gate_lower_bound",
                                                       "rms_eps",
                                                       "kda_a_log",
                                                       "kda_l2",
                                                       "situ_beta",
                                                       "situ_linear_beta",
                                                       "routed_scale",
                                                       "layer_origin",
                                                       "content_sha256",
                                                       "dir_crc32c",
                                                       "synthetic",
                                                       "provenance"};
  return keys;
}

void WarnUnknownKeys(const json& object, const std::string& what, Architecture arch,
                     std::vector<std::string>& warnings) {
  constexpr size_t kMaxNamed = 16;
  size_t unknown = 0;
  for (auto it = object.begin(); it != object.end(); ++it) {
    const std::string& key = it.key();
    const bool is_dimension = std::any_of(kK3Dimensions.begin(), kK3Dimensions.end(),
                                          [&](const Dimension& d) { return key == d.key; });
    if (is_dimension || KnownOtherKeys().contains(key)) continue;
    if (arch == Architecture::kDeepSeekV4 && IsDeepSeekKey(key)) continue;
    if (++unknown > kMaxNamed) continue;
    warnings.push_back(what + ": unknown key \"" + key.substr(0, 64) + "\" is ignored");
  }
  if (unknown > kMaxNamed) {
    warnings.push_back(what + ": " + std::to_string(unknown - kMaxNamed) +
                       " more unknown keys are ignored");
  }
}

Status SelectArchitecture(ConfigReader& reader, const std::string& what, MkimConfig& config) {
  std::string arch = "k3";
  reader.String("arch", arch);
  if (!reader.status()) return reader.status();
  if (arch == "k3") {
    config.arch = Architecture::kK3;
  } else if (arch == "deepseek_v4") {
    config.arch = Architecture::kDeepSeekV4;
  } else if (arch == "dense") {
    return Fail(ErrorCode::kUnsupported,
                what +
                    ": arch \"dense\" marks a sliced plain transformer, which this engine does "
                    "not run",
                "use a model of arch k3 or deepseek_v4");
  } else {
    return Fail(ErrorCode::kUnsupported, what + ": unknown arch \"" + arch.substr(0, 64) + "\"",
                "use a model of arch k3 or deepseek_v4");
  }
  return {};
}

void ReadSpecials(ConfigReader& reader, const std::string& what, MkimConfig& config) {
  const json* object = nullptr;
  SpecialIds& ids = config.specials;
  const auto last = static_cast<int64_t>(config.vocab) - 1;
  if (reader.Object("specials", object)) {
    ConfigReader specials(*object, what, "specials.");
    const std::array<std::pair<const char*, int32_t*>, 8> fields = {
        {{"bos", &ids.bos},
         {"eos", &ids.eos},
         {"open", &ids.open},
         {"close", &ids.close},
         {"sep", &ids.sep},
         {"end_of_msg", &ids.end_of_msg},
         {"unk", &ids.unk},
         {"pad", &ids.pad}}};
    for (const auto& [key, field] : fields) specials.Integer(key, 0, last, *field);
    reader.Merge(specials);
  }
  if (ids.bos > last || ids.end_of_msg > last) {
    reader.Refuse("specials.bos " + std::to_string(ids.bos) + " and specials.end_of_msg " +
                  std::to_string(ids.end_of_msg) + " must be below vocab " +
                  std::to_string(config.vocab));
  }
}

void ReadDimensions(ConfigReader& reader, const std::string& what, const ConfigOptions& options,
                    MkimConfig& config, std::vector<std::string>& warnings) {
  std::string defaulted;
  for (const Dimension& dimension : kK3Dimensions) {
    const std::string_view key = dimension.key;
    uint32_t& field = config.*dimension.field;
    if (reader.Integer(dimension.key, dimension.min, dimension.max, field)) continue;
    if (!reader.status()) return;
    if (key == "n_shared" || key == "format" || key == "first_k_dense") continue;
    if (options.require_all_dimensions) {
      reader.Refuse("key \"" + std::string(key) + "\" is missing");
      return;
    }
    if (!defaulted.empty()) defaulted += ", ";
    defaulted += std::string(key) + " = " + std::to_string(field);
  }
  if (!defaulted.empty()) warnings.push_back(what + ": keys are missing and taken as " + defaulted);
  if (config.top_k > config.n_experts) {
    reader.Refuse("top_k " + std::to_string(config.top_k) + " exceeds n_experts " +
                  std::to_string(config.n_experts));
  }
}

void ReadEnums(ConfigReader& reader, MkimConfig& config) {
  std::string text;
  if (reader.String("kda_a_log", text)) {
    if (text == "channel") {
      config.kda_a_log = ALogReading::kChannel;
    } else if (text == "head") {
      config.kda_a_log = ALogReading::kHead;
    } else {
      reader.Bad("kda_a_log", text, "must be \"channel\" or \"head\"");
    }
    config.a_log = config.kda_a_log.value_or(ALogReading::kChannel);
  }
  if (reader.String("kda_l2", text)) {
    if (text == "max1e-12") {
      config.kda_l2 = KdaL2::kMax;
    } else if (text == "sum1e-6") {
      config.kda_l2 = KdaL2::kSum;
    } else {
      reader.Bad("kda_l2", text, "must be \"max1e-12\" or \"sum1e-6\"");
    }
  }
}

constexpr auto kPositive = +[](float x) { return x > 0; };
constexpr auto kNegative = +[](float x) { return x < 0; };

void ReadFloats(ConfigReader& reader, MkimConfig& config) {
  reader.Float("rms_eps", kPositive, "must be a finite number above 0", config.rms_eps);
  reader.Float("gate_lower_bound", kNegative, "must be a finite number below 0",
               config.gate_lower_bound);
  reader.Float("situ_beta", kPositive, "must be a finite number above 0", config.situ_beta);
  reader.Float("situ_linear_beta", kPositive, "must be a finite number above 0",
               config.situ_linear_beta);
  reader.Float("routed_scale", kPositive, "must be a finite number above 0", config.routed_scale);
}

void ResolvePatterns(MkimConfig& config) {
  config.attention.assign(config.n_layers, AttentionKind::kKda);
  config.feed_forward.assign(config.n_layers, FeedForwardKind::kMoe);
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    if (l % 4 == 3 || l + 1 == config.n_layers) config.attention[l] = AttentionKind::kMla;
    if (l < config.first_k_dense) config.feed_forward[l] = FeedForwardKind::kDense;
  }
}

void ReadLayerLists(ConfigReader& reader, MkimConfig& config) {
  ResolvePatterns(config);
  std::vector<uint32_t> layers;
  // A list replaces the pattern, an empty one too.
  if (reader.Layers("mla_layers", config.n_layers, layers)) {
    config.attention.assign(config.n_layers, AttentionKind::kKda);
    for (const uint32_t l : layers) config.attention[l] = AttentionKind::kMla;
  }
  if (reader.Layers("dense_layers", config.n_layers, layers)) {
    config.feed_forward.assign(config.n_layers, FeedForwardKind::kMoe);
    for (const uint32_t l : layers) config.feed_forward[l] = FeedForwardKind::kDense;
  }
}

void ReadLabels(ConfigReader& reader, MkimConfig& config) {
  reader.String("tokenizer", config.tokenizer);
  if (reader.String("content_sha256", config.content_sha256)) {
    const std::string& hex = config.content_sha256;
    if (hex.size() != 64 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
      reader.Bad("content_sha256", hex, "must be 64 lower-case hex digits");
    }
  }
}

}  // namespace

std::string_view ArchitectureName(Architecture arch) {
  return arch == Architecture::kK3 ? "k3" : "deepseek_v4";
}

uint32_t MkimConfig::CountMla() const {
  return static_cast<uint32_t>(std::count(attention.begin(), attention.end(), AttentionKind::kMla));
}

uint32_t MkimConfig::CountDense() const {
  return static_cast<uint32_t>(
      std::count(feed_forward.begin(), feed_forward.end(), FeedForwardKind::kDense));
}

MkimConfig DefaultConfig() {
  MkimConfig config;
  ResolvePatterns(config);
  return config;
}

Result<ALogReading> ResolveALog(const MkimConfig& config, uint64_t elements,
                                const std::string& tensor, std::vector<std::string>& warnings) {
  const uint64_t heads = config.kda_heads;
  const uint64_t channels = config.kda_dim;
  ALogReading reading = ALogReading::kChannel;
  if (config.kda_a_log) {
    reading = *config.kda_a_log;
  } else if (elements == heads && heads != channels) {
    reading = ALogReading::kHead;
  } else if (elements == channels && heads == channels) {
    warnings.push_back("tensor '" + tensor + "': kda_heads and kda_dim are both " +
                       std::to_string(heads) +
                       ", A_log is read per channel; set \"kda_a_log\" in the config to say which");
  }
  const uint64_t expected = reading == ALogReading::kHead ? heads : channels;
  if (elements != expected) {
    return Fail(ErrorCode::kCorrupt,
                "tensor '" + tensor + "' has " + std::to_string(elements) +
                    " values: A_log needs kda_heads = " + std::to_string(heads) +
                    " (\"kda_a_log\": \"head\") or kda_dim = " + std::to_string(channels) +
                    " (\"channel\")",
                "cut or export the tensor again and set \"kda_a_log\" in the config");
  }
  return reading;
}

Result<MkimConfig> ParseConfig(std::string_view text, const std::string& what,
                               const ConfigOptions& options, std::vector<std::string>& warnings) {
  auto parsed = ParseStrictJson(text, what, kMaxConfigDepth);
  if (!parsed) return Fail(parsed.error());
  if (!parsed->is_object()) {
    return Fail(ErrorCode::kCorrupt, what + " is not a JSON object",
                "the file was written wrongly; export or build it again");
  }
  MkimConfig config;
  ConfigReader reader(*parsed, what);
  const Status arch = SelectArchitecture(reader, what, config);
  if (!arch) return Fail(arch.error());
  if (config.arch == Architecture::kK3) {
    ReadDimensions(reader, what, options, config, warnings);
    if (!reader.status()) return Fail(reader.status().error());
    ReadFloats(reader, config);
    ReadEnums(reader, config);
    ReadLayerLists(reader, config);
  } else {
    reader.Integer("format", 1, std::numeric_limits<uint32_t>::max(), config.format);
    ReadDeepSeekConfig(reader, what, options, config, warnings);
    if (!reader.status()) return Fail(reader.status().error());
  }
  ReadSpecials(reader, what, config);
  ReadLabels(reader, config);
  if (!reader.status()) return Fail(reader.status().error());
  if (config.format > 3) {
    return Fail(ErrorCode::kUnsupported,
                what + ": format " + std::to_string(config.format) + " is newer than this engine",
                "update the engine");
  }
  WarnUnknownKeys(*parsed, what, config.arch, warnings);
  return config;
}

}  // namespace mk
