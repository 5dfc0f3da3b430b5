// ShadowExperts: the shadows of a model's routed experts in memory, to compute with at once.
//
//   Result<std::unique_ptr<ShadowExperts>> shadows = ShadowExperts::Load(file, model, pool);
//   ExpertWeights weights = (*shadows)->Get(layer, expert);
//
// What is in memory is there for as long as the object lives: Get never waits and never fails. The
// weights are close to those of the experts, no more: whoever computes with them has to say so.
// Thread safety: immutable after Load.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/experts/expert_store.h"
#include "engine/format/mkim_file.h"
#include "engine/parallel/page_buffer.h"
#include "engine/parallel/thread_pool.h"
#include "engine/shadow/shadow_file.h"

namespace mk {

class ShadowExperts final : public ExpertShadows {
 public:
  // The sidecar at `path` ("": the one beside the model), which has to be the model's: errors name
  // the command that makes it. Errors: kNotFound, kIncompatible, kCorrupt, kUnsupported, kIo.
  static Result<ShadowFile> Find(const MkimFile& model, const std::string& path = {});
  // What resident_bytes() of its shadows will be.
  static uint64_t Measure(const ShadowInfo& info);

  // Reads all of them. Errors: kIo, kCorrupt, kOutOfMemory.
  static Result<std::unique_ptr<ShadowExperts>> Load(const ShadowFile& file, const MkimFile& model,
                                                     ThreadPool& pool);
  ~ShadowExperts() override;
  ShadowExperts(const ShadowExperts&) = delete;
  ShadowExperts& operator=(const ShadowExperts&) = delete;

  // A layer without experts has none.
  bool Has(size_t layer) const { return layer < rows_.size() && rows_[layer] != kNone; }
  // Of a layer that has some; `expert` is below the model's number of them.
  ExpertWeights Get(size_t layer, uint32_t expert) const override;

  const ShadowInfo& info() const { return info_; }
  uint64_t resident_bytes() const override { return codebooks_.size() + data_.size(); }
  // The system cannot page them out. False where the limit on locked memory does not allow it.
  bool locked() const { return locked_; }

 private:
  static constexpr size_t kNone = ~size_t{0};
  ShadowExperts(const ShadowFile& file, const MkimFile& model);
  Status Read(const ShadowFile& file, ThreadPool& pool);

  const ShadowInfo info_;
  size_t width_ = 0;          // m
  size_t inner_ = 0;          // i
  std::vector<size_t> rows_;  // of a layer in info_.layers, or kNone
  PageBuffer codebooks_;      // complete (vq1_matmul.h)
  PageBuffer data_;           // [n][E][3][G][stages]
  bool locked_ = false;
};

}  // namespace mk
