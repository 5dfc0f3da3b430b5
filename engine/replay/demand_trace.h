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
  // Bytes of every value, [keys]. Empty: values count as one each.
  std::vector<uint64_t> sizes;

  size_t keys() const { return layers * experts; }
  size_t layer_of(ExpertKey key) const { return key / experts; }
  size_t expert_of(ExpertKey key) const { return key % experts; }
  uint64_t size_of(ExpertKey key) const { return sizes.empty() ? 1 : sizes[key]; }
  size_t DistinctKeys() const;
  // Where passes over the layers begin, as indices of demands, and behind the last one the number
  // of demands. A pass is a token of an answer or a whole prompt.
  std::vector<size_t> PassStarts() const;
  // The demands of the first passes.
  DemandTrace FirstPasses(size_t passes) const;
};

// Traces of clients that share a model, one pass of each in turn; who ends leaves the others their
// turns. Values count as one each.
DemandTrace Interleave(std::span<const DemandTrace> traces);

// Of whole records. kCorrupt: the size is no multiple of 8, there are none, or numbers that no
// model has (layers and experts below 65,536, no more than 2^20 pairs).
Result<DemandTrace> ParseDemandTrace(std::span<const std::byte> bytes);
// The same of a file of at most 1 GiB. Errors also as ReadFile.
Result<DemandTrace> ReadDemandTrace(const std::string& path);

}  // namespace mk
