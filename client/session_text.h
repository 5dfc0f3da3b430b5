// Sessions of the daemon as text.

#pragma once

#include <string>

#include "protocol/messages.h"

namespace mk::client {

// A table, one session per line, and what could not be used.
std::string SessionsText(const protocol::SessionsDone& done);
// Their names, one per line.
std::string SessionNamesText(const protocol::SessionsDone& done);
// All that is known of one, a line for each turn.
std::string SessionInfoText(const protocol::SessionShowDone& done);
// What was said in it: a text as it stands, a conversation with ">" before what its user said.
std::string SessionSaidText(const protocol::SessionShowDone& done);
// One line: "story: text, 3 turns, 120 tokens, 3 states of 1.2 MiB".
std::string SessionLine(const protocol::SessionInfo& session);
// Where two sessions part, and how far their states are apart.
std::string SessionDiffText(const std::string& a, const std::string& b,
                            const protocol::SessionDiffDone& done);

}  // namespace mk::client
