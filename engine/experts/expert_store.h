// ExpertStore: where the matrices of routed experts come from.
//
// A layer asks for the experts that its tokens chose, uses them, and gives them back. The store may
// hold them all (ResidentExperts) or fetch them on demand.
//
// Thread safety: all methods may be called from several threads at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/kernels/expert_matmul.h"

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

  // A hint that these experts of a MoE layer will be acquired soon. Never blocks, never fails.
  virtual void Prefetch(size_t /*layer*/, std::span<const uint32_t> /*experts*/) {}

  // Waits until the experts are in memory and writes where they are; they stay until Release is
  // called with the same arguments. `experts` are distinct, `out` has as many entries. kIo,
  // kCorrupt; nothing is held after a failure.
  virtual Status Acquire(size_t layer, std::span<const uint32_t> experts,
                         std::span<ExpertWeights> out) = 0;
  virtual void Release(size_t layer, std::span<const uint32_t> experts) = 0;

  // Memory held now, in bytes.
  virtual uint64_t resident_bytes() const = 0;

 protected:
  ExpertStore() = default;
};

}  // namespace mk
