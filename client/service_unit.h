// The text of the user units that `mk service install` writes: the same templates that
// `cmake --install` fills, with this mk's daemon and this user's folders.
//
// A unit that mk wrote begins with a line that has a checksum of the rest, so that one which
// somebody edited is told from one that may be replaced.

#pragma once

#include <map>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mk::client {

inline constexpr const char* kSocketUnit = "microkimid.socket";
inline constexpr const char* kServiceUnit = "microkimid.service";

struct UnitSettings {
  std::string program;  // absolute path of microkimid
  std::string socket;   // absolute path; "": the usual one, below the user's runtime folder
  std::map<std::string, std::string> environment;  // that the daemon is to have
};

struct UnitTexts {
  std::string socket;
  std::string service;
};

// Errors: kBadRequest for a path or value that systemd cannot be told: not UTF-8, with control
// characters, or (the socket) with a space or a backslash at its end.
protocol::Result<UnitTexts> RenderUnits(const UnitSettings& settings);

enum class UnitAuthor { kMk, kEdited, kOther };  // kEdited: mk wrote it, and it was changed since
UnitAuthor AuthorOf(std::string_view text);

// The program of ExecStart= and the path of ListenStream= as systemd reads them, %t being
// `runtime_folder`; "" when there is none.
std::string ProgramOf(std::string_view service_text);
std::string ListenPathOf(std::string_view socket_text, const std::string& runtime_folder);

}  // namespace mk::client
