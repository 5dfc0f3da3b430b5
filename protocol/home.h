// The user's home directory.

#pragma once

#include <string>

namespace mk::protocol {

// $HOME; where that is not set, or is relative, what the user database says. Absolute, or empty
// when neither tells. Without a lock: call it before there are threads, or from one.
std::string HomeDirectory();

}  // namespace mk::protocol
