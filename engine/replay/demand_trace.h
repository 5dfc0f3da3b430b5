// DemandTrace: the experts that a model's layers asked for, one after the other.
//
// A file of it has no header: 8-byte records, layer and expert as u32, little-endian. Inside of a
// token layers ascend; where the layer goes down, the next pass over the layers begins.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/expert_cache/key_list.h"

namespace mk {

struct DemandTrace {
  size_t layers = 0;   // largest layer + 1
  size_t experts = 0;  // largest expert + 1
  std::vector<ExpertKey> demands;

  size_t keys() const { return layers * experts; }
  size_t layer_of(ExpertKey key) const { return key / experts; }
  size_t expert_of(ExpertKey key) const { return key % experts; }
  size_t DistinctKeys() const;
};

// Of whole records. kCorrupt: the size is no multiple of 8, there are none, or numbers that no
// model has (layers and experts below 65,536, no more than 2^20 pairs).
Result<DemandTrace> ParseDemandTrace(std::span<const std::byte> bytes);
// The same of a file of at most 1 GiB. Errors also as ReadFile.
Result<DemandTrace> ReadDemandTrace(const std::string& path);

}  // namespace mk
