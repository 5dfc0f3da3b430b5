// Speed of a model: decoding at several contexts, batches, prompts, and the first token, each next
// to its roof.
//
// Every point is warmed up, then measured step by step; the median counts. Tokens are random and
// the same in every run, so that experts vary as they do in text; no sampler runs.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/bench/roof.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {

struct BenchPlan {
  std::vector<size_t> contexts;  // decode one sequence behind so many tokens
  std::vector<size_t> batches;   // decode so many sequences together, behind `batch_context` tokens
  std::vector<size_t> prompts;   // read prompts of so many tokens
  size_t batch_context = 128;
  size_t first_token_prompt = 16;  // 0: no such point
  // Measured time per point, in steps of at least kLeastSamples.
  std::chrono::milliseconds time{1500};

  static BenchPlan Full();   // 128, 2048, 8192; 1, 2, 4, 8; 500, 512, 2000
  static BenchPlan Quick();  // a few seconds for a small model: 128; 1, 4; 500
};

inline constexpr size_t kLeastSamples = 3;

enum class BenchKind : uint8_t {
  kDecode,      // one sequence; a step is a token
  kBatch,       // several sequences; a step is a token of each
  kPrefill,     // a step is a prompt from an empty sequence to logits
  kFirstToken,  // the same with a short prompt, making the sequence included
};
std::string_view BenchKindName(BenchKind kind);  // "decode", "batch", "prefill", "first_token"

struct BenchPoint {
  BenchKind kind = BenchKind::kDecode;
  size_t tokens = 0;  // of context (decode, batch) or of the prompt
  size_t batch = 1;
  size_t samples = 0;  // steps measured
  double step_ms = 0;  // median
  double step_ms_p10 = 0;
  double step_ms_p90 = 0;
  double tokens_per_s = 0;  // of all sequences, at the median
  double ms_per_token = 0;
  double gb_per_s = 0;   // decode and batch: weights, states and caches read; else 0
  double gop_per_s = 0;  // useful operations
  Limit limit;           // first token: that of a prompt
  double share = 0;      // tokens_per_s / limit
};

// Called with the share of the points done and the name of the next one ("decode at 2048"); false
// to stop.
using BenchProgress = std::function<bool(double done, std::string_view next)>;

// Measures every point of a plan. The precision is prepared; the executor is used by nobody else.
// kCancelled, and errors of Model::NewSequence and Forward.
Result<std::vector<BenchPoint>> BenchModel(const Model& model, Executor& executor, const Roof& roof,
                                           const BenchPlan& plan,
                                           const BenchProgress& progress = {});

}  // namespace mk
