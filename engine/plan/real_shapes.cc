#include "engine/plan/real_shapes.h"

#include <utility>

#include "engine/build/dsv4_plan.h"
#include "engine/build/k3_plan.h"
#include "engine/format/mkim_writer.h"

namespace mk {
namespace {

// The wide presets have the real widths; these are the other dimensions.
Result<ModelPlan> PlanRealK3() {
  return PlanK3("k3-wide", 0,
                {{"n_layers", "93"},
                 {"vocab", "163840"},
                 {"n_experts", "896"},
                 {"top_k", "16"},
                 {"attn_res_block", "12"}});
}

Result<ModelPlan> PlanRealDsv4() {
  std::string ratios = "[0,0";
  for (int l = 2; l < 43; ++l) ratios += l % 2 == 0 ? ",4" : ",128";
  return PlanDsv4("dsv4-wide", 0,
                  {{"n_layers", "43"},
                   {"vocab", "129280"},
                   {"compress_ratios", ratios + ",0,0,0]"},
                   {"n_routed_experts", "256"},
                   {"num_experts_per_tok", "6"},
                   {"num_hash_layers", "3"}});
}

}  // namespace

std::vector<std::string> RealShapeNames() {
  return {"k3", "dsv4"};
}

Result<std::shared_ptr<const MkimFile>> RealShape(const std::string& name) {
  if (name != "k3" && name != "dsv4") {
    return Fail(ErrorCode::kInvalidArgument, "no dimensions are known of \"" + name + "\"",
                "known are k3 and dsv4");
  }
  const Result<ModelPlan> plan = name == "k3" ? PlanRealK3() : PlanRealDsv4();
  if (!plan) return Fail(plan.error());
  Result<MkimLayout> layout = PlanLayout(plan->config_json, plan->tensors, ExpertAlign::kAuto);
  if (!layout) return Fail(layout.error());
  return MkimFile::FromHeader(std::move(layout->header), layout->file_bytes, name);
}

}  // namespace mk
