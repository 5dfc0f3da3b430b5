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

struct ExpertWeights {
  ExpertMatrix gate;  // w1 [i, m]
  ExpertMatrix down;  // w2 [m, i]
  ExpertMatrix up;    // w3 [i, m]
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
  virtual void Release(size_t /*layer*/, std::span<const uint32_t> /*experts*/) {}

  // Memory held now, in bytes.
  virtual uint64_t resident_bytes() const = 0;

 protected:
  ExpertStore() = default;
};

}  // namespace mk
