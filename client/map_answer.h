// What answers of all kinds of work have in common.

#pragma once

#include <string>

#include "client/map_work.h"

namespace mk::client {

// {"index", "id", "status"}
Json MapHead(const MapItem& item, const char* status);
// A line for stderr about an item.
std::string MapNote(const MapItem& item, const std::string& text);
// An item without an answer: as JSON, or as a note.
MapAnswer MapFailure(const MapItem& item, const protocol::Error& error, bool json);

}  // namespace mk::client
