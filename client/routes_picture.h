// Experts' use as a picture: a row per layer, a column per expert, and beside it how even the load
// of the layer is.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/messages.h"

namespace mk::client {

struct RoutesPicture {
  std::string model;
  std::string about;  // where the counts come from
  protocol::ExpertTally tally;
};

// SVG. At least one layer has counts.
std::string Draw(const RoutesPicture& picture);

// Counts of all experts of a layer, zeros included.
std::vector<uint64_t> DenseCounts(const protocol::ExpertTally& tally,
                                  const protocol::ExpertCounts& layer);

}  // namespace mk::client
