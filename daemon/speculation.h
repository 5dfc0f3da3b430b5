// Speculation of runs, between protocol and engine.

#pragma once

#include "engine/model/model.h"
#include "engine/speculate/speculator.h"
#include "protocol/messages.h"

namespace mk::daemon {

SpeculationOptions SpeculationOf(const protocol::RunArgs& args);
// The most that speculation takes beside the state of a sequence of so many tokens.
uint64_t SpeculationBytes(const Model& model, const protocol::RunArgs& args, uint64_t tokens);
protocol::SpeculationReport ReportOf(const SpeculationStats& stats);

}  // namespace mk::daemon
