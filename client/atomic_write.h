// A file that is always whole: the old one or the new one, whatever happens in between.

#pragma once

#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mk::client {

// Whether WriteFileAtomically can be expected to work: to be asked before long work for its sake.
// Errors as there, and kNotFound for a folder that does not exist.
protocol::Status CheckWritable(const std::string& path);

// Replaces a regular file, whose mode it keeps, or makes one with mode 0600; of a symbolic link,
// the file that it names. Written beside it, flushed to disk, then put in its place. Errors:
// kPermissionDenied, kIoError; messages name the file.
protocol::Status WriteFileAtomically(const std::string& path, std::string_view bytes);

}  // namespace mk::client
