// One generated token with its log-probability, as a line for people.

#pragma once

#include <string>

#include "client/json_format.h"
#include "client/table.h"
#include "protocol/messages.h"

namespace mk::client {

// Text between quotes, made printable; a token without text by its id.
// "88.4 %" of a log-probability in nats.
std::string LogprobPercent(double logprob);

// "' the'            88.4 %   -0.123   ' a' 5.2 %, ' his' 2.1 %\n"; what was chosen is bold among
// the alternatives.
std::string LogprobLine(const protocol::TokenChunk& token, const Painter& paint);
// {"id", "text", "logprob", "top"}
Json LogprobJson(const protocol::TokenChunk& token);

}  // namespace mk::client
