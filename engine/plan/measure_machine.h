// Measures a machine for predictions.

#pragma once

#include <functional>
#include <string>

#include "engine/base/result.h"
#include "engine/model/executor.h"
#include "engine/plan/machine_profile.h"

namespace mk {

// Rates of the kernels, and what layers cost beside their weights, by models of a few layers that
// are built in `folder` and removed. About five seconds. Disks and models are left out. Errors: as
// MeasureKernels, BuildModel, LoadModel and BenchModel.
Result<MachineProfile> MeasureMachine(Executor& executor, const std::string& folder,
                                      const std::function<bool()>& go_on = {});

// Loads a model whole and runs it. Errors: as LoadModel and BenchModel.
Result<ModelSpeed> MeasureModelSpeed(const std::string& path, Precision precision,
                                     Executor& executor, const std::function<bool()>& go_on = {});

}  // namespace mk
