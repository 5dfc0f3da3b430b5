// The published models by their dimensions alone: headers of files that are not here.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"

namespace mk {

// "k3", "dsv4".
std::vector<std::string> RealShapeNames();

// Kimi K3 (93 layers, 896 experts) or DeepSeek-V4-Flash (43 layers, 256 experts) as `mk build`
// would lay it out: dense weights as f32, experts as MXFP4. kInvalidArgument for another name.
Result<std::shared_ptr<const MkimFile>> RealShape(const std::string& name);

}  // namespace mk
