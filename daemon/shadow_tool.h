// `microkimid shadow FILE`, which `mk shadow --info` becomes: what a file of shadows says of
// itself. Neither a daemon nor a model is needed.

#pragma once

#include <string_view>

namespace mk::daemon {

inline constexpr std::string_view kShadowTool = "shadow";

// Arguments from "shadow" on. Returns the exit code; what there is to say has been printed.
int ShadowTool(int argc, const char* const* argv);

}  // namespace mk::daemon
