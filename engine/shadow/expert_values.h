// The weights of routed experts as floats, whatever they are stored as.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/experts/expert_arena.h"
#include "engine/format/mkim_file.h"

namespace mk {

// The experts of a model as its file tells them; `experts` is 0 when it has none.
ExpertShape ExpertShapeOf(const MkimFile& file);
// The layers that have experts, ascending.
std::vector<uint32_t> ExpertLayers(const ExpertShape& shape);

// Thread-safe; every thread has a buffer of its own.
class ExpertValues {
 public:
  // Errors: kIo, kCorrupt (no codebook for VQ1 experts).
  static Result<ExpertValues> Open(const MkimFile& file);

  // Reads a matrix, [rows][cols], into `out`, which has as many values. `raw` is a buffer. Errors:
  // kIo, kCorrupt for values that are not finite and scales that none can have.
  Status Read(const TensorEntry& entry, std::vector<std::byte>& raw, std::span<float> out) const;

 private:
  explicit ExpertValues(const MkimFile& file) : file_(&file) {}

  const MkimFile* file_;
  std::vector<float> codebook_;
};

}  // namespace mk
