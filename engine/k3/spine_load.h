// Brings the spine of a precision into memory: from the folder of prepared spines if it holds it,
// else from the model file.

#pragma once

#include <memory>
#include <optional>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/format/spine_file.h"
#include "engine/k3/load_progress.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"
#include "engine/parallel/thread_pool.h"

namespace mk::k3 {

// Version of everything that decides which bytes a prepared spine has: what spine_layout.cc and
// spine_read.cc write and how PackRows packs it. To be raised when any of that changes.
inline constexpr uint32_t kSpineVersion = 1;

struct LoadedSpine {
  std::unique_ptr<const K3Weights> weights;
  bool cached = false;  // it came from the folder
  // Under which it is worth keeping; none when it is there already, or when nothing is kept.
  std::optional<SpineKey> keep;
};

// `bytes` is what LayOutSpine counts, `fingerprint` that of the file. Exact spines are never kept:
// they have the size of the file's own weights, and only their order differs.
Result<LoadedSpine> LoadSpine(const MkimFile& file, const K3Shape& shape, Precision precision,
                              size_t bytes, const std::string& fingerprint,
                              const SpineCacheOptions& cache, ThreadPool& pool,
                              LoadProgress& progress);

}  // namespace mk::k3
