// Fills the memory of a spine: from the folder of prepared spines if it holds it, else from the
// model file.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/format/spine_file.h"
#include "engine/model/load_progress.h"
#include "engine/model/model.h"
#include "engine/parallel/thread_pool.h"
#include "engine/spine/spine_piece.h"

namespace mk {

// What a spine is made from. `version` is that of everything that decides which bytes it has: the
// architecture's layout, what spine_read.cc writes and how PackRows packs it.
struct SpineSource {
  const MkimFile& file;
  const std::string& fingerprint;  // of the file
  Precision precision = Precision::kExact;
  uint32_t version = 0;
};

struct SpineOutcome {
  bool cached = false;  // it came from the folder
  // Under which it is worth keeping; none when it is there already, or when nothing is kept.
  std::optional<SpineKey> keep;
};

// `memory` is the zeroed memory that `plan` was laid out over. Exact spines are never kept: they
// have the size of the file's own weights, and only their order differs.
Result<SpineOutcome> FillSpine(const SpineSource& source, const SpinePlan& plan,
                               std::span<std::byte> memory, const SpineCacheOptions& cache,
                               ThreadPool& pool, LoadProgress& progress);

}  // namespace mk
