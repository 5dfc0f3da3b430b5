// A comparison of two models as a picture: every measure with its interval, the documents of all
// texts, and how far next tokens and routers agree.

#pragma once

#include <string>

#include "protocol/messages.h"

namespace mk::client {

// SVG.
std::string DrawComparison(const protocol::CompareDone& done);

}  // namespace mk::client
