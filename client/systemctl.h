// systemd's user manager, asked through systemctl.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/clock.h"
#include "protocol/error.h"

namespace mk::client {

// Properties of a unit, as `systemctl show` names them.
using UnitProperties = std::map<std::string, std::string>;

class Systemctl {
 public:
  // Looks whether a user manager answers.
  static Systemctl Connect();

  bool running() const { return missing_.empty(); }
  // Why there is none: "no systemctl in PATH", or what systemctl says.
  const std::string& missing() const { return missing_; }

  // `systemctl --user ARGUMENTS`. Errors: kIoError with what systemctl said, kTimeout.
  protocol::Status Run(const std::vector<std::string>& arguments) const;
  protocol::Result<UnitProperties> Show(const std::string& unit,
                                        const std::vector<std::string>& properties) const;

 private:
  std::string missing_;
};

// %t of the user's units: $XDG_RUNTIME_DIR, else /run/user/UID.
std::string UserRuntimeFolder();

}  // namespace mk::client
