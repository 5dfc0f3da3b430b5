// The tensors that a DeepSeek-V4 config calls for, and the check that a file has them.

#pragma once

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/format/tensor_census.h"

namespace mk {

// Calls `visit` for every tensor of floats that every token may read (all but the routed experts,
// the hash tables and vq_codebook) until it returns false.
void ForEachDeepSeekSpineTensor(const MkimConfig& config, const TensorVisitor& visit);

// Checks that every tensor is there with its shape and type, that the three matrices of an expert
// have one type, that hash tables name experts that exist, and that the values of all vectors are
// finite. Unknown names go to `warnings`. kCorrupt, kIo.
Status CheckDeepSeekCensus(const MkimFile& file, std::vector<std::string>& warnings);

}  // namespace mk
