// A copy of a pack that tells another lineage.

#pragma once

#include <string>

#include "engine/base/result.h"
#include "engine/pack/pack_math.h"

namespace mk {

// The state and its id stay the same. MKMEM002 only. Errors: those of PackReader and SavePack.
Result<PackInfo> CopyPack(const std::string& from, const std::string& lineage,
                          const PackTarget& to);

}  // namespace mk
