#include "client/state_folder.h"

#include "protocol/home.h"
#include "protocol/socket_path.h"

namespace mk::client {

protocol::Result<std::string> MakeStateFolder() {
  protocol::Result<std::string> state = protocol::StateDirectory();
  if (!state) return state;
  if (protocol::Status made = protocol::MakeFolders(*state); !made) {
    made.error().hint = "set XDG_STATE_HOME to a folder of yours";
    return protocol::Fail(std::move(made.error()));
  }
  return state;
}

}  // namespace mk::client
