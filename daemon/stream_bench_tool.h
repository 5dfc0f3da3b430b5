// `microkimid bench-stream MODEL`, which `mk bench stream` becomes: what streaming the experts of a
// model costs, at several budgets and ways, on a disk of given slowness.

#pragma once

#include <string_view>

namespace mk::daemon {

inline constexpr std::string_view kStreamBenchTool = "bench-stream";

// Arguments from "bench-stream" on. Returns the exit code; what there is to say has been printed.
int StreamBenchTool(int argc, const char* const* argv);

}  // namespace mk::daemon
