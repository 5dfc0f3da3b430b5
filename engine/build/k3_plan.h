// Presets and value distributions of Kimi K3 models.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/build/model_plan.h"

namespace mk {

std::vector<std::string> K3PresetNames();

// Errors: kInvalidArgument (unknown preset or key, a value that the config does not allow).
Result<ModelPlan> PlanK3(const std::string& preset, uint64_t seed, const Overrides& overrides);

}  // namespace mk
