#include "engine/format/resource_plan.h"

namespace mk {

ResourcePlan PlanSequence(const MkimConfig& config) {
  ResourcePlan plan;
  if (config.arch != Architecture::kK3) return plan;
  const uint64_t mla = config.CountMla();
  const uint64_t kda = config.n_layers - mla;
  const uint64_t matrix = uint64_t{config.kda_heads} * config.kda_dim * config.kda_dim;
  const uint64_t windows = 3 * uint64_t{config.kda_conv - 1} * config.kda_heads * config.kda_dim;
  plan.state_bytes = kda * (matrix + windows) * sizeof(float);
  plan.kv_bytes_per_token = mla * (uint64_t{config.mla_kv_lora} + config.mla_rope) * sizeof(float);
  const uint64_t head = uint64_t{config.vocab} * config.hidden;
  plan.q8_head_bytes = config.FitsQ8Head() ? head + head / 32 * sizeof(float) : 0;
  return plan;
}

Status CheckBudget(const ResourcePlan& plan, uint64_t limit, const std::string& path) {
  if (limit == 0 || plan.loaded_bytes() <= limit) return {};
  return Fail(ErrorCode::kOutOfMemory,
              path + " needs " + std::to_string(plan.loaded_bytes()) +
                  " bytes of memory, the limit is " + std::to_string(limit),
              "raise the memory limit or use a smaller model");
}

}  // namespace mk
