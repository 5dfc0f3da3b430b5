// systemd/microkimid.socket and systemd/microkimid.service.in; the build puts them in.

#pragma once

namespace mk::client {

extern const char* const kSocketTemplate;
// With @MK_DAEMON_COMMAND@, and a line @MK_DAEMON_ENVIRONMENT@.
extern const char* const kServiceTemplate;

}  // namespace mk::client
