// ExpertStore: where the matrices of routed experts come from.
//
// A layer requests the experts that its tokens chose, uses each as soon as it is in memory, and
// gives it back. The store may hold them all (ResidentExperts) or fetch them on demand
// (StreamedExperts).
//
// Thread safety: all methods may be called from several threads at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/kernels/expert_matmul.h"
#include "engine/model/prefetch_source.h"

namespace mk {

// Weights of an expert, by reference.
struct ExpertWeights {
  ExpertMatrix gate;    // w1 [i, m]
  ExpertMatrix down;    // w2 [m, i]
  ExpertMatrix up;      // w3 [i, m]
  bool shadow = false;  // not the expert's own, but something close to them
};

// Stand-ins for all experts of a model, in memory. Immutable; any thread.
class ExpertShadows {
 public:
  virtual ~ExpertShadows() = default;
  ExpertShadows(const ExpertShadows&) = delete;
  ExpertShadows& operator=(const ExpertShadows&) = delete;
  // Of a layer with experts.
  virtual ExpertWeights Get(size_t layer, uint32_t expert) const = 0;
  virtual uint64_t resident_bytes() const = 0;

 protected:
  ExpertShadows() = default;
};

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Whether Prefetch of this source is of use now: what is predicted costs work.
  virtual bool WantsPrefetch(PrefetchSource /*source*/) const { return false; }
  // A hint that these experts of a MoE layer will be requested soon. Never blocks, never fails.
  virtual void Prefetch(size_t /*layer*/, std::span<const uint32_t> /*experts*/,
                        PrefetchSource /*source*/) {}

  // These experts of a layer, different ones, will be acquired: reads of those that are not in
  // memory begin. Never blocks. Every requested expert is released in the end, acquired or not.
  virtual void Request(size_t /*layer*/, std::span<const uint32_t> /*experts*/) {}
  // Of requested experts that have not been acquired yet (`pending`, at least one): waits until
  // some are in memory, brings those to the front of `pending` and writes where they are to the
  // front of `out`, which has as many entries. Returns how many; they stay until they are released.
  // kIo, kCorrupt, kOutOfMemory: one of them cannot be had.
  virtual Result<size_t> Acquire(size_t layer, std::span<uint32_t> pending,
                                 std::span<ExpertWeights> out) = 0;
  // In the place of Request and Acquire, for those who would not wait: the experts themselves as
  // far as they are in memory, shadows of the others, which are read for the next time. Those that
  // are no shadows are released in the end. As many as `experts`; a store without shadows waits.
  virtual Status AcquireNow(size_t layer, std::span<const uint32_t> experts,
                            std::span<ExpertWeights> out) = 0;
  virtual void Release(size_t /*layer*/, std::span<const uint32_t> /*experts*/) {}

  // Memory held now, in bytes.
  virtual uint64_t resident_bytes() const = 0;

 protected:
  ExpertStore() = default;
};

}  // namespace mk
