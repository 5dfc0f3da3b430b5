#include "client/state_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "protocol/socket_path.h"

namespace mk::client {

protocol::Result<std::string> MakeStateFolder() {
  protocol::Result<std::string> state = protocol::StateDirectory();
  if (!state) return state;
  for (size_t slash = state->find('/', 1);; slash = state->find('/', slash + 1)) {
    const std::string part = state->substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      return protocol::Fail(
          error == EACCES ? protocol::ErrorCode::kPermissionDenied : protocol::ErrorCode::kIoError,
          "cannot make the state folder " + part + ": " + std::strerror(error),
          "set XDG_STATE_HOME to a folder of yours");
    }
    if (slash == std::string::npos) return state;
  }
}

}  // namespace mk::client
