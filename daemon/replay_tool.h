// `microkimid cachereplay TRACE...`, which `mk cachereplay` becomes: what caches of experts would
// have held of recorded traces. Neither a daemon nor a model is needed.

#pragma once

#include <string_view>

namespace mk::daemon {

inline constexpr std::string_view kReplayTool = "cachereplay";

// Arguments from "cachereplay" on. Returns the exit code; what there is to say has been printed.
int ReplayTool(int argc, const char* const* argv);

}  // namespace mk::daemon
