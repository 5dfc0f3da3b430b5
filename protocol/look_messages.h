// Looks into a model at work: what a run tells of its layers and experts, and the op
// `expert_stats`. Included by messages.h.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mk::protocol {

// What the head would say after a layer.
struct LensLayer {
  uint32_t layer = 0;
  std::string kind;                   // of its attention: "KDA", "MLA", "SWA", "CSA", "HCA"
  std::vector<int32_t> ids;           // likeliest first, equal ones by id
  std::vector<std::string> texts;     // of them; none without a tokenizer
  std::vector<double> probabilities;  // of them
  double entropy = 0;                 // of the whole row, in nats
  // Of the token that came next, if one did: tokens that are likelier, or as likely and of lower
  // id, and its probability.
  std::optional<uint64_t> rank;
  std::optional<double> probability;
  bool operator==(const LensLayer&) const = default;
};

// type "chunk", kind "lens": the logit lens after the token at `position`. The last layer of a
// model is what the model says itself.
struct LensChunk {
  uint64_t position = 0;  // absolute
  int32_t id = 0;         // of the token there
  std::string text;
  std::optional<uint64_t> index;  // among the generated tokens; none: it is one of the prompt
  std::optional<int32_t> next;    // the token that came next
  std::string next_text;
  std::vector<LensLayer> layers;
  bool operator==(const LensChunk&) const = default;
};

struct LayerRms {
  uint32_t layer = 0;
  std::string kind;
  double rms = 0;  // root of the mean of squares, of all residual streams
  bool operator==(const LayerRms&) const = default;
};

// type "chunk", kind "hidden_stats": sizes after the last token of the prompt.
struct HiddenStatsChunk {
  uint64_t position = 0;
  std::vector<LayerRms> layers;
  double output_rms = 0;  // of what the head reads, before the final norm
  double logits_mean = 0;
  double logits_std = 0;  // of the population
  bool operator==(const HiddenStatsChunk&) const = default;
};

// How often routers picked experts. Those that were never picked are left out.
struct ExpertCounts {
  uint32_t layer = 0;
  std::vector<int32_t> experts;  // ascending
  std::vector<uint64_t> counts;
  bool operator==(const ExpertCounts&) const = default;
};
struct ExpertTally {
  uint64_t tokens = 0;  // that were read or generated
  uint32_t layers = 0;
  uint32_t experts = 0;  // per layer
  uint32_t top_k = 0;
  std::vector<ExpertCounts> counts;  // ascending layers; those without a router are left out
  bool operator==(const ExpertTally&) const = default;
};

struct ExpertStatsArgs {
  std::string model;   // path, alias or name; "": all that are loaded
  bool reset = false;  // begin to count anew, when what there was has been told
  bool operator==(const ExpertStatsArgs&) const = default;
};

struct ExpertStatsModel {
  std::string model;  // path
  std::string fingerprint;
  ExpertTally tally;
  bool operator==(const ExpertStatsModel&) const = default;
};
struct ExpertStatsDone {
  bool counting = false;  // the daemon's setting count_experts
  std::vector<ExpertStatsModel> models;
  bool operator==(const ExpertStatsDone&) const = default;
};

}  // namespace mk::protocol
