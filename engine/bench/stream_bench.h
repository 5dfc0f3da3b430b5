// Speed of a model whose experts are streamed, at several budgets and ways of streaming, on a disk
// that is as slow as one likes. The logits of every way are compared with those of the resident
// model: a way that changes them is wrong.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {

struct StreamBenchPlan {
  std::vector<double> shares = {0.10, 0.25, 0.50};  // of what all experts take
  size_t prompt = 128;                              // tokens read first, which fills the caches
  size_t tokens = 16;                               // decoded one by one, and measured
  std::vector<size_t> clients = {1, 4};             // that decode together, at `clients_share`
  double clients_share = 0.25;
  SlowDiskOptions disk{.latency_us = 2000, .bytes_per_second = 500'000'000, .depth = 32};
  Precision precision = Precision::kQ8;
  size_t threads = 1;
  std::string shadows;  // sidecar; empty: ways with shadows are left out
};

// A way of streaming.
struct StreamWay {
  std::string_view name;
  std::string_view text;  // what it is
  CachePolicyKind policy = CachePolicyKind::kAged;
  bool fuse = true;
  bool prefetch = true;
  uint32_t depth = 64;
  bool fallback = false;  // shadows in the place of what is not in memory: not exact
  bool greedy = false;    // the model's own text, not random tokens
  size_t guesses = 0;     // of greedy: tokens that shadows guess before they are verified
};

// From what the reference engine does without its options to what we do; then, with a sidecar of
// shadows, what those are good for.
std::vector<StreamWay> StreamWays(bool shadows);

struct StreamBenchPoint {
  std::string way;      // of StreamWays(), or "resident"
  double share = 1;     // of the experts' bytes
  uint64_t budget = 0;  // bytes
  size_t clients = 1;
  bool same_text = false;  // all clients decode the same tokens
  double prefill_ms = 0;
  double prefill_reads_per_expert = 0;  // experts read per expert that a segment needed
  double tokens_per_s = 0;              // of all clients
  double token_p50_ms = 0;
  double token_max_ms = 0;
  double hit_share = 0;
  double reads_per_token = 0;
  double bytes_per_token = 0;
  double stall_share = 0;     // of the time of decoding
  double accepted_share = 0;  // of guesses by shadows
  double useful_share = 0;    // of what was read ahead: in memory or on its way when it was needed
  bool exact = true;          // logits (greedy: tokens) are those of the resident model
  bool degraded = false;      // shadows had a part in it
};

// Loads the model, streamed or (without options) resident, in the plan's precision.
using StreamLoad =
    std::function<Result<std::shared_ptr<const Model>>(const std::optional<StreamOptions>&)>;
// Called with every point as it is measured; false to stop.
using StreamBenchSink = std::function<bool(const StreamBenchPoint&)>;

// kCancelled; errors of loading and running. kInvalidArgument for a model without experts.
Status BenchStream(const StreamLoad& load, const StreamBenchPlan& plan,
                   const StreamBenchSink& sink);

}  // namespace mk
