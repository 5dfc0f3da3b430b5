// The op `bench`, and what a benchmark tells. Included by messages.h.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/model_selector.h"

namespace mk::protocol {

struct BenchArgs {
  ModelSelector model;
  std::string precision = kAutoPrecision;
  bool quick = false;    // a few seconds instead of a minute
  uint32_t threads = 0;  // 0: the daemon's setting
  bool operator==(const BenchArgs&) const = default;
};

// What the machine can do at most with so many threads, measured before the model.
struct BenchCeilings {
  uint64_t threads = 0;
  double read_gb_per_s = 0;        // streaming reads of a set larger than the caches
  double cache_read_gb_per_s = 0;  // reads of 24 MiB again and again
  double fma_gflop_per_s = 0;      // f32 multiply-adds on registers, two operations each
  double int8_gop_per_s = 0;       // dot products of bytes on registers, two operations per product
  bool operator==(const BenchCeilings&) const = default;
};

// What a token costs in this precision, and the limits that follow.
struct BenchRoof {
  uint64_t spine_bytes = 0;            // dense weights that every decoded token reads
  uint64_t expert_bytes = 0;           // routed experts that one token chooses
  uint64_t state_bytes = 0;            // recurrent state of a sequence
  uint64_t context_bytes = 0;          // cache that a decoded token reads, per token of its context
  uint64_t multiply_adds = 0;          // per token, without the two that follow
  uint64_t head_multiply_adds = 0;     // per row of logits
  uint64_t context_multiply_adds = 0;  // per token of its context
  double spine_gb_per_s = 0;           // measured with a set as large as the spine, caches included
  double expert_gb_per_s = 0;  // streaming reads, or as the spine when all weights fit into caches
  double peak_gop_per_s = 0;   // f32 multiply-adds; q8: dot products of bytes
  double decode_tokens_per_s = 0;  // L = 1 / (sum over these weights of bytes / bandwidth)
  bool operator==(const BenchRoof&) const = default;
};

struct BenchPoint {
  std::string kind;     // "decode", "batch", "prefill", "first_token"
  uint64_t tokens = 0;  // of context (decode, batch) or of the prompt
  uint64_t batch = 1;   // sequences
  uint64_t samples = 0;
  double step_ms = 0;  // median of a step: a token of every sequence, or a prompt
  double step_ms_p10 = 0;
  double step_ms_p90 = 0;
  double ms_per_token = 0;
  double tokens_per_s = 0;  // of all sequences together
  double gb_per_s = 0;      // decode and batch: weights, states and caches read
  double gop_per_s = 0;     // useful operations
  double limit_tokens_per_s = 0;
  std::string limit_by;  // "reads", "arithmetic"
  double share = 0;      // tokens_per_s / limit_tokens_per_s
  bool operator==(const BenchPoint&) const = default;
};

struct BenchDone {
  std::string model_path;
  std::string architecture;
  std::string fingerprint;
  uint64_t vocab = 0;
  uint64_t parameters = 0;
  std::string precision;      // never "auto"
  uint64_t memory_bytes = 0;  // held by the model
  std::string processor;      // "": the system does not tell
  uint64_t processors = 0;    // that the system shows
  uint64_t threads = 0;       // used
  std::string target;         // instruction set of the kernels: "AVX3_DL", "AVX2", ...
  std::string date;           // UTC, "2026-11-30T10:33:25Z"
  std::string build_id;       // of the daemon
  bool quick = false;
  double seconds = 0;
  std::vector<BenchCeilings> ceilings;
  BenchRoof roof;
  std::vector<BenchPoint> points;
  bool operator==(const BenchDone&) const = default;
};

}  // namespace mk::protocol
