// The reads that bring experts of a file into memory, planned by the code of a store that runs.

#pragma once

#include <memory>

#include "engine/base/result.h"
#include "engine/expert_cache/expert_read.h"
#include "engine/format/mkim_file.h"

namespace mk {

// Keeps the file. Errors as ExpertTable::Create.
Result<ReadPlanner> PlanReadsOf(std::shared_ptr<const MkimFile> file);

}  // namespace mk
