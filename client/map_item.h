// One item of `mk map`: from a record of the input to the arguments of a run.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/json_format.h"
#include "client/map_settings.h"
#include "client/record_reader.h"
#include "protocol/messages.h"

namespace mk::client {

struct MapItem {
  uint64_t index = 0;      // 0 for the first
  std::optional<Json> id;  // what the item calls itself; repeated in its answer
  protocol::RunArgs args;
  bool own_model = false;                // it names a model itself
  std::optional<protocol::Error> error;  // why it cannot be run
};

// The separator of records, and the most bytes that one may have.
char SeparatorOf(MapForm form);
size_t MostBytesOf(MapForm form);

// Whether a record holds no item: a blank line among JSON objects.
bool IsBlank(MapForm form, const Record& record);

// Everything that the daemon would refuse is found here: the item's `error`.
MapItem ReadItem(const MapSettings& settings, uint64_t index, Record record);

}  // namespace mk::client
