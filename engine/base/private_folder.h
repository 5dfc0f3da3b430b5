// Folders for files that this user alone may put there.
//
// Functions without shared state; thread-safe.

#pragma once

#include <string>

#include "engine/base/result.h"

namespace mk {

// That a folder is ours and nobody else can write to it: others could put files there, or swap
// them. Errors: kPermissionDenied, kNotFound, kIo.
Status CheckPrivateFolder(const std::string& path);

// Makes the folder with mode 0700 if need be, with parents as private as it is, and checks it.
Status MakePrivateFolder(const std::string& path);

}  // namespace mk
