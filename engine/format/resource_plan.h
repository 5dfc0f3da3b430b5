// ResourcePlan: what a model will need, computed from its directory before anything is loaded.

#pragma once

#include <cstdint>
#include <string>

#include "engine/base/result.h"
#include "engine/format/config.h"

namespace mk {

// All in bytes.
struct ResourcePlan {
  uint64_t spine_bytes = 0;         // every tensor but the routed experts, as f32
  uint64_t spine_file_bytes = 0;    // the same as stored
  uint64_t expert_bytes = 0;        // routed experts as stored
  uint64_t expert_index_bytes = 0;  // directory and expert table in memory
  uint64_t state_bytes = 0;         // fixed state of one sequence: KDA matrices and windows
  uint64_t kv_bytes_per_token = 0;  // MLA latents of one token, f32
  uint64_t q8_head_bytes = 0;       // an 8-bit copy of the head: values and one f32 per 32
  // Resident when spine and experts are both held in memory.
  uint64_t loaded_bytes() const { return spine_bytes + expert_bytes + expert_index_bytes; }
};

// Fixed state and growth of one K3 sequence; the other fields are zero.
//   state = KDA layers x (H D^2 + 9 P) x 4 bytes   (matrix per head; three windows of taps-1 <= 3
//           columns with taps = 4, in general 3 (taps-1) P)
//   kv    = MLA layers x (r_kv + rope) x 4 bytes
ResourcePlan PlanSequence(const MkimConfig& config);

// kOutOfMemory when the plan's loaded bytes exceed `limit`; 0 = no limit.
Status CheckBudget(const ResourcePlan& plan, uint64_t limit, const std::string& path);

}  // namespace mk
