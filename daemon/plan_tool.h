// `microkimid plan [MODEL]`, which `mk plan` becomes: what a model would need of a machine, and how
// fast it would be. No daemon is needed. What was measured of this machine is kept in the state
// directory.

#pragma once

#include <string_view>

namespace mk::daemon {

inline constexpr std::string_view kPlanTool = "plan";

// Arguments from "plan" on. Returns the exit code; what there is to say has been printed.
int PlanTool(int argc, const char* const* argv);

}  // namespace mk::daemon
