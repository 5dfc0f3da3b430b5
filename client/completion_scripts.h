// Completion scripts for shells, from the descriptions of the commands.

#pragma once

#include <span>
#include <string>

#include "client/description.h"

namespace mk::client {

// Sourced, or put where the shell looks for completions: share/bash-completion/completions/mk,
// share/zsh/site-functions/_mk, share/fish/vendor_completions.d/mk.fish. Names of models are asked
// from a daemon that runs; none is started.
std::string BashCompletions(std::span<const CommandInfo> commands);
std::string ZshCompletions(std::span<const CommandInfo> commands);
std::string FishCompletions(std::span<const CommandInfo> commands);

}  // namespace mk::client
