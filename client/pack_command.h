// `mk pack`

#pragma once

#include "client/command_line.h"

namespace mk::client {

int PackCommand(const Command& command, int argc, char** argv);

}  // namespace mk::client
