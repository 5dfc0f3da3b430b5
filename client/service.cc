#include "client/service.h"

#include <array>
#include <cstdlib>

#include "client/daemon_program.h"
#include "protocol/socket_path.h"

namespace mk::client {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

Result<ServicePlace> FindService() {
  Result<std::string> folder = UserUnitFolder();
  if (!folder) return Fail(std::move(folder.error()));
  Result<UnitFile> socket = ReadUnitFile(*folder + "/" + kSocketUnit);
  if (!socket) return Fail(std::move(socket.error()));
  Result<UnitFile> service = ReadUnitFile(*folder + "/" + kServiceUnit);
  if (!service) return Fail(std::move(service.error()));
  return ServicePlace{std::move(*folder), std::move(*socket), std::move(*service)};
}

Result<UnitTexts> WantedUnits(const std::string& socket) {
  UnitSettings settings;
  settings.program = DaemonBesideMk();
  if (settings.program.empty()) {
    return Fail(ErrorCode::kNotFound, "there is no microkimid beside this mk",
                "call the mk of a whole installation, or build microkimid");
  }
  Result<protocol::SocketPaths> paths = protocol::FindSocketPaths(socket);
  if (!paths) return Fail(std::move(paths.error()));
  if (paths->socket != UserRuntimeFolder() + "/microkimi/microkimid.sock") {
    settings.socket = paths->socket;
  }
  // The user manager does not read the shell's start-up files; the daemon is to find the same
  // folders as the one that mk would start here.
  constexpr std::array kFolders = {"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME",
                                   "XDG_CACHE_HOME"};
  for (const char* name : kFolders) {
    const char* value = std::getenv(name);
    if (value != nullptr && value[0] == '/') settings.environment[name] = value;
  }
  return RenderUnits(settings);
}

}  // namespace mk::client
