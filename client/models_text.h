// Models as `mk models` and `mk ps` show them.

#pragma once

#include <string>

#include "client/json_format.h"
#include "protocol/messages.h"

namespace mk::client {

std::string ModelsText(const protocol::ModelsDone& done);
std::string NamesText(const protocol::ModelsDone& done);

// What is loaded: a line for each model, and the budget.
std::string LoadedText(const protocol::StatusDone& status);
// {"memory": {...}, "models": [...]}, as `mk status --json` has them.
Json LoadedJson(const protocol::StatusDone& status);

// "exact,q8"
std::string Joined(const std::vector<std::string>& words, const char* between = ",");

}  // namespace mk::client
