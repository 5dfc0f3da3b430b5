// A file that is always whole: the old one or the new one, whatever happens in between.

#pragma once

#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mk::client {

// Replaces or makes a regular file, with mode 0600; of a symbolic link, the file that it names.
// Written beside it, flushed to disk, then put in its place. Errors: kPermissionDenied, kIoError;
// messages name the file.
protocol::Status WriteFileAtomically(const std::string& path, std::string_view bytes);

}  // namespace mk::client
