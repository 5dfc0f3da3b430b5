#include "client/state_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "protocol/socket_path.h"

namespace mk::client {

protocol::Status MakeFolders(const std::string& folder) {
  for (size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    const std::string part = folder.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      return protocol::Fail(
          error == EACCES ? protocol::ErrorCode::kPermissionDenied : protocol::ErrorCode::kIoError,
          "cannot make the folder " + part + ": " + std::strerror(error));
    }
    if (slash == std::string::npos) return {};
  }
}

protocol::Result<std::string> MakeStateFolder() {
  protocol::Result<std::string> state = protocol::StateDirectory();
  if (!state) return state;
  if (protocol::Status made = MakeFolders(*state); !made) {
    made.error().hint = "set XDG_STATE_HOME to a folder of yours";
    return protocol::Fail(std::move(made.error()));
  }
  return state;
}

}  // namespace mk::client
