// One item of `mk map`: from a record of the input to the arguments of a run.

#pragma once

#include <cstdint>

#include "client/map_settings.h"
#include "client/map_work.h"

namespace mk::client {

// The separator of records, and the most bytes that one may have.
char SeparatorOf(MapForm form);
size_t MostBytesOf(MapForm form);

// Whether a record holds no item: a blank line among JSON objects.
bool IsBlank(MapForm form, const Record& record);

// Everything that the daemon would refuse is found here: the item's `error`.
MapItem ReadItem(const MapSettings& settings, uint64_t index, Record record);

}  // namespace mk::client
