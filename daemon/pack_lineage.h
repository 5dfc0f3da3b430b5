// The lineage of packs that runs and sessions make: a JSON object that tells where the state comes
// from ("operation", "parents"), and how the answer of a chat that it holds is finished
// ("closing").
//
// Thread-safe.

#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace mk::daemon {

// Adds what is to be told of RunState::closing.
void PutClosing(const std::vector<int32_t>& closing, nlohmann::json& lineage);

// A lineage that tells nothing else; "" when there is nothing to tell.
std::string ClosingLineage(const std::vector<int32_t>& closing);

// RunState::closing of the pack at `path`; empty where the lineage does not tell. Errors: kCorrupt
// when it tells what cannot be.
Result<std::vector<int32_t>> ClosingIn(const std::string& lineage, const std::string& path,
                                       size_t vocab = size_t{std::numeric_limits<int32_t>::max()} +
                                                      1);

}  // namespace mk::daemon
