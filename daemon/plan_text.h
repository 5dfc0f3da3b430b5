// What `mk plan` says.

#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/plan/prediction.h"

namespace mk::daemon {

// A plan, and what it was made from.
struct PlanReport {
  std::string model;    // what the user named
  bool is_file = true;  // not a shape without weights
  ModelFootprint footprint;
  MachineProfile profile;
  PlanMachine machine;
  bool disk_direct = true;
  bool disk_given = false;  // both numbers of it
  PlanQuestion question;
  std::string trace;  // file; "": synthetic demands
  ModelPlanned plan;
};

std::string ToText(const PlanReport& report);
nlohmann::ordered_json ToJson(const PlanReport& report);
// Why there is nothing to load; nothing when there is.
std::optional<Error> Refusal(const PlanReport& report);

std::string ToText(const MachineProfile& profile, const std::string& path);

}  // namespace mk::daemon
