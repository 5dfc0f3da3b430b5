// The tensors that a K3 config calls for, and the check that a file has them.

#pragma once

#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/format/tensor_census.h"

namespace mk {

// Calls `visit` for every spine tensor (all but the routed experts and vq_codebook) until it
// returns false. dims of A_log are [kda_dim].
void ForEachK3SpineTensor(const MkimConfig& config, const TensorVisitor& visit);

// Checks that every tensor is there with its shape and type, that the three matrices of an expert
// have one type, that VQ1 experts have their codebook and that the values of all vectors are
// finite. Unknown names go to `warnings`. Returns how A_log is to be read.
Result<ALogReading> CheckK3Census(const MkimFile& file, std::vector<std::string>& warnings);

}  // namespace mk
