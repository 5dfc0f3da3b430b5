// eval and compare: what models are worth on texts and tasks. Included by job_messages.h, whose
// jobs both are. docs/evaluation.md says what is measured.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/model_selector.h"

namespace mk::protocol {

// Names of the form of `mk eval --json` and `mk compare --json`.
inline constexpr const char* kEvalSchema = "mk-eval-1";
inline constexpr const char* kCompareSchema = "mk-compare-1";

// What is measured, and how. `tasks` and `texts` are names of bundled ones or paths; a job's are
// paths, also of the bundled ones.
struct EvalItems {
  std::vector<std::string> tasks;
  std::vector<std::string> texts;
  uint32_t limit = 0;  // of each task so many probes, from the first; 0: all
  bool chunked_prefill = true;
  // How models are loaded that are not loaded yet; see StreamWish.
  std::string stream;
  uint64_t stream_memory = 0;
  // Take shadows for experts that are not in memory: degraded. Not of `compare`.
  bool stream_fallback = false;
  bool operator==(const EvalItems&) const = default;
};

struct EvalArgs {
  ModelSelector model;
  EvalItems items;
  std::string precision = kAutoPrecision;
  bool operator==(const EvalArgs&) const = default;
};

struct CompareArgs {
  ModelSelector a;
  ModelSelector b;
  EvalItems items;
  std::string precision = kAutoPrecision;  // of a
  std::string precision_b = kAutoPrecision;
  uint64_t seed = 1;
  uint32_t resamples = 10'000;
  std::string interval = "bca";  // "bca", "percentile"
  bool operator==(const CompareArgs&) const = default;
};

// ---------------------------------------------------------------- eval

struct EvaluatedModel {
  std::string path;
  std::string architecture;
  std::string fingerprint;
  std::string precision;
  uint64_t file_bytes = 0;
  uint64_t parameters = 0;
  uint64_t vocab = 0;
  // As Trust: whether what was measured was the whole model.
  bool degraded = false;
  uint64_t shadow_tokens = 0;
  uint64_t failed_experts = 0;
  bool operator==(const EvaluatedModel&) const = default;
};

// `hits` of `count`, and Wilson's 95 % interval of their share.
struct Proportion {
  double hits = 0;  // a probe of whose two phrasings one was answered counts half
  uint64_t count = 0;
  double share = 0;
  double low = 0;
  double high = 1;
  bool operator==(const Proportion&) const = default;
};

struct NamedProportion {
  std::string name;
  Proportion accuracy;
  bool operator==(const NamedProportion&) const = default;
};

struct TextCard {
  std::string name;
  std::string sha256;  // of the file
  uint64_t documents = 0;
  uint64_t bytes = 0;              // of the text that was scored
  uint64_t tokens = 0;             // scored
  uint64_t unk = 0;                // tokens that stand for text that the vocabulary cannot spell
  uint64_t hidden = 0;             // bytes of that text
  double nats = 0;                 // sum of -log p over the scored tokens
  double perplexity = 0;           // per token: exp(nats / tokens)
  double perplexity_per_byte = 0;  // 2^bits_per_byte
  double bits_per_byte = 0;        // with 8 bits for every hidden byte
  Proportion top1;                 // tokens that were the likeliest
  Proportion top5;                 // among the five likeliest
  bool operator==(const TextCard&) const = default;
};

struct ProbeOutcome {
  std::string id;
  std::string category;
  double score = 0;              // share of its phrasings that were answered right
  std::vector<int32_t> picks;    // per phrasing; -1 where there is nothing to choose
  std::optional<double> margin;  // of choices, mean over phrasings: right one over best other
  bool operator==(const ProbeOutcome&) const = default;
};

struct TaskCard {
  std::string name;
  std::string sha256;
  uint64_t probes = 0;
  uint64_t phrasings = 0;                    // of all probes together
  Proportion accuracy;                       // by each probe's rule; the unit is the probe
  std::optional<Proportion> acc;             // by log-likelihood, where all probes have choices
  std::optional<Proportion> acc_norm;        // by log-likelihood per character
  double chance = 0;                         // accuracy of guessing; 0 where there are no choices
  std::vector<NamedProportion> categories;   // in the order of the file
  std::vector<NamedProportion> by_phrasing;  // "1", "2": where probes have several
  std::vector<ProbeOutcome> outcomes;
  bool operator==(const TaskCard&) const = default;
};

struct EvalDone {
  EvaluatedModel model;
  bool chunked_prefill = true;
  std::vector<TextCard> texts;
  std::vector<TaskCard> tasks;
  std::vector<std::string> warnings;
  bool operator==(const EvalDone&) const = default;
};

// ---------------------------------------------------------------- compare

// A measure of both models on the same units, and b - a.
struct PairedDifference {
  double a = 0;
  double b = 0;
  double difference = 0;
  std::optional<double> low;  // 95 %; none with too few units
  std::optional<double> high;
  std::string interval;  // "bca", "percentile", "none"
  uint64_t units = 0;
  uint64_t better = 0;  // units in which b is better
  uint64_t worse = 0;
  uint64_t ties = 0;
  double sign_p = 1;      // exact two-sided sign test
  double detectable = 0;  // the smallest difference that so many units would show
  // Of b: "better", "worse", "equivalent", "no difference shown", "too few to tell".
  std::string verdict;
  bool operator==(const PairedDifference&) const = default;
};

struct ComparedDocument {
  std::string id;
  uint64_t bytes = 0;
  double bits_a = 0;
  double bits_b = 0;
  bool operator==(const ComparedDocument&) const = default;
};

struct ComparedText {
  std::string name;
  std::string sha256;
  TextCard a;
  TextCard b;
  PairedDifference bits_per_byte;  // the unit is the document
  std::vector<ComparedDocument> documents;
  bool operator==(const ComparedText&) const = default;
};

struct ComparedTask {
  std::string name;
  std::string sha256;
  TaskCard a;
  TaskCard b;
  PairedDifference accuracy;  // the unit is the probe
  bool operator==(const ComparedTask&) const = default;
};

// A mean over positions with its bootstrap interval over documents.
struct PositionMean {
  double mean = 0;
  std::optional<double> low;
  std::optional<double> high;
  bool operator==(const PositionMean&) const = default;
};

struct LayerOverlap {
  uint32_t layer = 0;
  double overlap = 0;  // mean share of a's experts that b picked as well
  bool operator==(const LayerOverlap&) const = default;
};

// How b's next tokens differ from a's, at every scored position of all texts.
struct Fidelity {
  uint64_t positions = 0;
  PositionMean top1;  // share where both have the same likeliest token
  PositionMean top5;  // mean share of a's five likeliest that are among b's
  PositionMean kl;    // nats: sum P_a (log P_a - log P_b)
  double kl_median = 0;
  double kl_p95 = 0;
  double kl_p99 = 0;
  double kl_max = 0;
  std::vector<LayerOverlap> routers;  // of models of one shape
  bool operator==(const Fidelity&) const = default;
};

struct CompareDone {
  EvaluatedModel a;
  EvaluatedModel b;
  bool chunked_prefill = true;
  uint64_t seed = 0;
  uint32_t resamples = 0;
  std::string interval;
  std::vector<ComparedText> texts;
  std::vector<ComparedTask> tasks;
  std::optional<Fidelity> fidelity;
  std::string no_fidelity;           // why there is none; "": there is
  std::vector<std::string> verdict;  // in words
  std::vector<std::string> warnings;
  bool operator==(const CompareDone&) const = default;
};

}  // namespace mk::protocol
