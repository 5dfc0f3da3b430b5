// The files of the service: units in the user's folder for them, and the link that enables it.

#pragma once

#include <string>

#include "client/service_unit.h"
#include "protocol/error.h"

namespace mk::client {

struct UnitFile {
  std::string path;
  bool exists = false;
  std::string text;
  UnitAuthor author = UnitAuthor::kOther;
};

// $XDG_CONFIG_HOME/systemd/user, else ~/.config/systemd/user. Errors: kBadRequest when no variable
// tells.
protocol::Result<std::string> UserUnitFolder();

// Errors: kIoError, kPermissionDenied for a file that is there but cannot be read. What is no
// regular file (a unit that was masked) counts as somebody else's.
protocol::Result<UnitFile> ReadUnitFile(const std::string& path);

// Makes the folders and writes. A file of somebody else must have been set aside.
protocol::Status WriteUnitFile(const UnitFile& file, const std::string& text);
// Renames it to "<path>.old" (".old2", ... when that is taken); returns the new name.
protocol::Result<std::string> SetAside(const UnitFile& file);
protocol::Status RemoveFile(const std::string& path);

// The link of an enabled socket unit in `folder`: what `systemctl enable` makes.
bool IsLinked(const std::string& folder);
protocol::Status Link(const std::string& folder);
// Also removes the link's folder if that is empty then.
protocol::Status Unlink(const std::string& folder);

}  // namespace mk::client
