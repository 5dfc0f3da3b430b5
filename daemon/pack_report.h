// What `mk pack` prints: text for people, JSON for programs.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/pack/pack_diff.h"
#include "engine/pack/pack_format.h"

namespace mk::daemon {

nlohmann::ordered_json ToJson(const PackInfo& info);
std::string ToText(const PackInfo& info);
// "k3, 120 tokens, q8, 1.2 MB, experimental".
std::string InOneLine(const PackInfo& info);

nlohmann::ordered_json ToJson(const PackDifference& difference);
std::string ToText(const PackDifference& difference);

}  // namespace mk::daemon
