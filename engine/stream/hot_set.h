// HotSet: the experts that were in memory when a streamed model was left, so that it comes back
// warm. Nothing depends on the file: one that is missing, damaged or of another model is not used.
//
// File, integers little-endian: "MKHOT001"; u32 length of the fingerprint and its bytes; u32
// layers; u32 experts of a layer; u32 count; count times u32 layer * experts + expert, the one used
// most often first; u64 XXH3 of all that.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/expert_cache/key_list.h"

namespace mk {

struct HotSet {
  std::string fingerprint;  // of the model
  uint32_t layers = 0;
  uint32_t experts = 0;
  std::vector<ExpertKey> keys;  // different ones
  bool operator==(const HotSet&) const = default;
};

// The file of a model in a folder for such files.
std::string HotSetPath(const std::string& folder, const std::string& fingerprint);

// kNotFound, kIo, kCorrupt.
Result<HotSet> ReadHotSet(const std::string& path);
// Replaces the file at once or not at all. Makes its folder, for this user alone. kIo and the like.
Status WriteHotSet(const std::string& path, const HotSet& set);

}  // namespace mk
