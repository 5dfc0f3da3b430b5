// The command line of `mk score`.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/map_settings.h"

namespace mk::client {

struct ScoreSettings {
  MapFlow flow;
  protocol::ScoreArgs args;                // of every text, but for the text
  std::string context;                     // before every text that has none of its own
  std::vector<protocol::ScoreItem> given;  // those of the command line; else records of `file`
  bool records = false;
  std::string file;  // of the records; "-": standard input
  MapForm input = MapForm::kLines;
  bool tokens = false;  // a row for each
  bool json = false;
};

// Nothing: go on with `settings`. Otherwise the exit code; help or an error has been printed. Reads
// a text that is no record.
std::optional<int> ParseScoreSettings(const Command& command, int argc, char** argv,
                                      ScoreSettings& settings);

}  // namespace mk::client
