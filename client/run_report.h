// The end of a run, as text and as JSON.

#pragma once

#include <string>

#include "client/json_format.h"
#include "protocol/messages.h"

namespace mk::client {

// "saved /p/story.mkmem: 120 tokens, 1.5 MiB in 9 ms".
std::string SavedText(const protocol::SavedPack& saved);

// "40 tokens, 812.5 tok/s; prompt 9 tokens in 0.01 s; ...": tokens, speed, how it ended, seed,
// precision, model.
std::string RunStatsText(const protocol::RunDone& done);

// As `mk run --json` shows it.
Json RunDoneJson(const protocol::RunDone& done);

}  // namespace mk::client
