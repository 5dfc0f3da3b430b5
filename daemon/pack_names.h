// What people call memory packs: a path, which has a '/' or ends in ".mkmem", or the name of one in
// the state folder.
//
// Thread-safe.

#pragma once

#include <filesystem>
#include <string>

#include "engine/base/result.h"

namespace mk::daemon {

inline constexpr std::string_view kPackSuffix = ".mkmem";

// Where packs with names are: <state folder>/packs.
std::filesystem::path PackFolder();
// The file of a pack. Errors: kInvalidArgument for what is neither a path nor a name.
Result<std::string> FindPack(const std::string& text);
// The same for a pack that is to be made: the folder of names is made when it is first needed.
// Errors: those of MakePrivateDirectory too.
Result<std::string> PlaceForPack(const std::string& text);

}  // namespace mk::daemon
