// Tensors and value distributions of DeepSeek-V4 models.

#pragma once

#include <cstdint>
#include <string>

#include "engine/base/result.h"
#include "engine/build/model_plan.h"

namespace mk {

// Errors: kInvalidArgument (unknown preset or key, a value that the config does not allow).
Result<ModelPlan> PlanDsv4(const std::string& preset, uint64_t seed, const Overrides& overrides);

}  // namespace mk
