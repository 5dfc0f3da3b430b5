// The user's home directory, and the folders that the XDG specification puts below it.

#pragma once

#include <string>

#include "protocol/error.h"

namespace mk::protocol {

// $HOME; where that is not set, or is relative, what the user database says. Absolute, or empty
// when neither tells. Without a lock: call it before there are threads, or from one.
std::string HomeDirectory();

// $`variable`, such as XDG_STATE_HOME, where it is absolute (relative values are to be ignored,
// says the specification); else `fallback` below the home directory. Absolute, or empty as
// HomeDirectory().
std::string UserFolder(const char* variable, const char* fallback);

// Makes an absolute folder, and its parents, with mode 0700 where they are missing. Errors:
// kIoError, kPermissionDenied.
Status MakeFolders(const std::string& folder);

}  // namespace mk::protocol
