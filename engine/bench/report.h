// A whole benchmark of a model in one precision: ceilings of the machine, the roof over the model,
// and every point of a plan, measured one after the other.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/bench/bench_model.h"
#include "engine/bench/ceilings.h"
#include "engine/bench/roof.h"

namespace mk {

struct BenchReport {
  std::vector<Ceilings> ceilings;  // of one thread and, if there are more, of all
  Roof roof;                       // from the last of them
  std::vector<BenchPoint> points;
};

// The precision is prepared; nobody else uses the executor. Errors: those of MeasureCeilings,
// MeasureRoof and BenchModel.
Result<BenchReport> RunBench(const Model& model, Precision precision, Executor& executor,
                             const BenchPlan& plan, const BenchProgress& progress = {});

// Memory that RunBench takes beside the model, in bytes, without the scratch of forward passes.
uint64_t BenchMemory(const ModelInfo& info, const BenchPlan& plan, size_t threads);

// Name of the processor ("AMD EPYC 9B14"), "" where the system does not tell.
std::string ProcessorName();

}  // namespace mk
