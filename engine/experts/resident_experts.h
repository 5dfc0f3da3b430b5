// ResidentExperts: all routed experts in anonymous memory, one arena per layer, in the form that
// kernels read.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/format/mkim_file.h"
#include "engine/model/load_progress.h"
#include "engine/parallel/page_buffer.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

class ResidentExperts final : public ExpertStore {
 public:
  // Bytes that Load will hold. kUnsupported or kCorrupt when an expert cannot be served.
  static Result<uint64_t> Measure(const MkimFile& file, const ExpertShape& shape);

  // Reads every expert. `codebook` is that of the file (VQ1), and must outlive the store.
  static Result<std::unique_ptr<ResidentExperts>> Load(const MkimFile& file,
                                                       const ExpertShape& shape,
                                                       const float* codebook, ThreadPool& pool,
                                                       LoadProgress& progress);

  Result<size_t> Acquire(size_t layer, std::span<uint32_t> pending,
                         std::span<ExpertWeights> out) override;
  Status AcquireNow(size_t layer, std::span<const uint32_t> experts,
                    std::span<ExpertWeights> out) override;
  uint64_t resident_bytes() const override;

 private:
  struct Layer {
    PageBuffer arena;
    std::vector<ExpertWeights> experts;  // [E], empty for a layer without experts
  };

  ResidentExperts() = default;

  std::vector<Layer> layers_;
};

}  // namespace mk
