// What a model would need of a machine, and how fast it would be, with experts in memory or
// streamed from the disk.
//
// The work of a token is counted from the model's header; what it takes comes from the rates of the
// kernels, or from a run of the same model with all of it in memory. What is waited for comes from
// a replay of demands against the cache and the disk.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/expert_cache/cache_policy.h"
#include "engine/expert_cache/expert_read.h"
#include "engine/model/footprint.h"
#include "engine/plan/machine_profile.h"
#include "engine/replay/demand_trace.h"

namespace mk {

// A machine, measured or assumed.
struct PlanMachine {
  uint64_t ram_bytes = 0;  // that the model and its caches may take
  DiskTiming disk;
  size_t cores = 1;
  // Of streaming reads with all cores; 0: as measured.
  double memory_gb_per_s = 0;
};

struct PlanQuestion {
  Precision precision = Precision::kQ8;
  CachePolicyKind policy = CachePolicyKind::kAged;
  size_t prompt_tokens = kMaxForwardTokens;
  // Budgets for streamed experts, buffers of reads included, as shares of what all experts take.
  std::vector<double> shares = {0.10, 0.25, 0.50, 0.75, 1.00};
  // Demands to be replayed; without, synthetic ones of this skew (SyntheticRouting::skew).
  const DemandTrace* trace = nullptr;
  double skew = 0.6;
  // How the experts are read (PlanReadsOf); empty: one read for each.
  ReadPlanner plan_reads;
};

// Seconds, nothing waited for.
struct ComputeTime {
  double decode_s = 0;  // of a token
  double prompt_s = 0;  // of the prompt
  // Of these, what can go on while a layer's experts are on their way: those that have come.
  double decode_overlap_s = 0;
  double prompt_overlap_s = 0;
  bool measured = false;  // from a run of this model
};

// Bytes.
struct PlanMemory {
  uint64_t tables = 0;
  uint64_t spine = 0;
  uint64_t sequence = 0;  // one, of the footprint's length
  uint64_t scratch = 0;   // of a forward pass over a piece of a prompt
  uint64_t experts = 0;   // all of them
  // Streamed experts: what is kept of each of them, and the least that a cache must have.
  uint64_t stream_tables = 0;
  uint64_t smallest_cache = 0;

  uint64_t fixed() const { return tables + spine + sequence + scratch; }
  uint64_t whole() const { return fixed() + experts; }
  uint64_t streamed(uint64_t cache) const { return fixed() + stream_tables + cache; }
};

struct BudgetRow {
  double share = 0;           // of all experts
  uint64_t cache_bytes = 0;   // buffers of reads included
  uint64_t memory_bytes = 0;  // in all
  bool fits = false;
  double hit_rate = 0;  // of experts that layers ask for, while decoding
  double stall_s = 0;   // of a token, mean
  double stall_p95_s = 0;
  double decode_tokens_per_s = 0;
  double prompt_s = 0;  // of the prompt, nothing in the cache
  double prompt_tokens_per_s = 0;
};

struct ModelPlanned {
  enum class Verdict {
    kResident,  // all of it fits
    kStream,    // it fits with a cache of `budget`
    kTooLarge,  // not even with the smallest cache
  };
  Verdict verdict = Verdict::kTooLarge;
  PlanMemory memory;
  ComputeTime compute;
  double load_s = 0;           // until the first token can come: all of it, or without experts
  double resident_load_s = 0;  // all of it
  std::vector<BudgetRow> rows;
  // kStream: the largest cache that fits, in whole MiB, and what it brings.
  std::optional<BudgetRow> best;
  // kTooLarge: precisions that would do.
  std::vector<Precision> smaller;
};

// What a token and a prompt take when nothing is waited for.
ComputeTime PredictCompute(const ModelFootprint& model, const MachineProfile& profile,
                           const PlanMachine& machine, const PlanQuestion& question);

PlanMemory PredictMemory(const ModelFootprint& model, Precision precision);

// Errors: kIncompatible when the trace asks for experts that the model does not have.
Result<ModelPlanned> PlanModel(const ModelFootprint& model, const MachineProfile& profile,
                               const PlanMachine& machine, const PlanQuestion& question);

}  // namespace mk
