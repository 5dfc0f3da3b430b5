// What `mk service` has to know: where the units are and what they should say.

#pragma once

#include <string>

#include "client/service_files.h"
#include "client/systemctl.h"

namespace mk::client {

struct ServicePlace {
  std::string folder;  // of the user's units
  UnitFile socket;
  UnitFile service;
};

protocol::Result<ServicePlace> FindService();

// What install would write for this mk, its environment and this socket ("": the usual one).
// Errors: kNotFound without a microkimid beside mk, and those of RenderUnits().
protocol::Result<UnitTexts> WantedUnits(const std::string& socket);

// Prints how the service stands; returns the exit code: 0 all well, 4 something is not as install
// makes it, 7 not installed.
int ShowService(const std::string& socket, bool json);

}  // namespace mk::client
