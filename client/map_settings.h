// The command line of `mk map`.

#pragma once

#include <optional>
#include <string>

#include "client/command_line.h"
#include "client/map_work.h"
#include "protocol/messages.h"

namespace mk::client {

// How items are told apart, on the way in and on the way out.
enum class MapForm {
  kLines,  // out: with newlines as \n
  kNul,    // texts as they are, each with a NUL after it
  kJson,   // one object per line
};

struct MapSettings {
  MapFlow flow;
  protocol::RunArgs args;  // of every item, but for its prompt
  std::string file;        // "-": standard input
  MapForm input = MapForm::kLines;
  MapForm output = MapForm::kLines;
};

// Nothing: go on with `settings`. Otherwise the exit code; help or an error has been printed.
std::optional<int> ParseMapSettings(const Command& command, int argc, char** argv,
                                    MapSettings& settings);

}  // namespace mk::client
