// ExpertRead: one request to the disk, and the experts that come with it.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/expert_cache/key_list.h"

namespace mk {

struct ExpertRead {
  uint64_t bytes = 0;           // from the first part to the last
  uint64_t disk_bytes = 0;      // the blocks that they lie in
  std::vector<ExpertKey> keys;  // that have a part in it, each once
};

// The reads that bring experts, given in ascending order.
using ReadPlanner = std::function<std::vector<ExpertRead>(std::span<const ExpertKey>)>;

}  // namespace mk
