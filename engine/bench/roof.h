// The roof over a model's speed: what no engine could go beyond on this machine, from the work of a
// token and measured ceilings.

#pragma once

#include <cstddef>
#include <functional>

#include "engine/base/result.h"
#include "engine/bench/ceilings.h"
#include "engine/model/model.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

// A limit in tokens per second and what sets it.
struct Limit {
  enum class By {
    kReads,       // bytes that must be touched, at the measured bandwidth
    kArithmetic,  // operations at the measured peak
  };
  By by = By::kReads;
  double tokens_per_s = 0;
};

struct Roof {
  Precision precision = Precision::kExact;
  TokenWork work;
  size_t experts = 0;  // routed experts per layer
  size_t top_k = 0;    // of them per token
  // What the spine and the experts are read at. A set that is read again with every token comes
  // partly from caches: the spine's is measured with a set of its size. Experts change from token
  // to token: streaming reads, unless all of them and the spine fit together into kCacheSetBytes.
  // States and caches of sequences count like the spine.
  double spine_gb_per_s = 0;
  double expert_gb_per_s = 0;
  // f32 multiply-adds, or dot products of bytes for q8.
  double peak_gop_per_s = 0;

  // Weights that one decoding step of `batch` sequences reads: the spine once, and the experts that
  // they choose, expected from choices that are even and independent.
  double StepBytes(size_t batch) const;
  // What a step touches of one sequence: its state, read and written, and its cache, read.
  double SequenceBytes(size_t context) const;
  // All that a step touches: weights, and states and caches of `context` tokens each.
  double StepBytesTouched(size_t batch, size_t context) const;
  // Useful operations (a multiply-add is two) of one decoded token behind `context` others.
  double DecodeOperations(size_t context) const;
  // Of a prompt of `tokens`, logits for the last token only.
  double PrefillOperations(size_t tokens) const;

  // tok/s of all sequences together that touching those bytes allows: for a batch of one, L.
  double ReadLimit(size_t batch, size_t context) const;
  Limit DecodeLimit(size_t batch, size_t context) const;
  Limit PrefillLimit(size_t tokens) const;
};

// The roof of a model in a prepared precision; measures the bandwidth of a set as large as its
// spine and a state. Errors as Model::Work and MeasureRead.
Result<Roof> MeasureRoof(const Model& model, Precision precision, ThreadPool& pool,
                         const Ceilings& ceilings, const std::function<bool()>& go_on = {});

}  // namespace mk
