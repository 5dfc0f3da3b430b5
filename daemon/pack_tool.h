// The daemon's program as a tool for pack files: `microkimid pack ACTION ...`, which `mk pack`
// becomes. Neither a daemon nor a model is needed. Names without '/' that do not end in ".mkmem"
// are those of packs in the state directory.

#pragma once

#include <string_view>

namespace mk::daemon {

inline constexpr std::string_view kPackTool = "pack";

// Arguments from "pack" on. Returns the exit code; what there is to say has been printed.
int PackTool(int argc, const char* const* argv);

}  // namespace mk::daemon
