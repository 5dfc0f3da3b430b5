#include <string>
#include <utility>

#include "engine/dsv4/dsv4_model.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/k3_model.h"
#include "engine/model/model.h"

namespace mk {
namespace {

struct ArchitectureLoader {
  Architecture architecture;
  Result<std::shared_ptr<const Model>> (*load)(std::shared_ptr<const MkimFile> file,
                                               const LoadOptions& options);
};

// One line per architecture that can be run.
constexpr ArchitectureLoader kLoaders[] = {
    {Architecture::kK3, k3::LoadK3},
    {Architecture::kDeepSeekV4, dsv4::LoadDsv4},
};

}  // namespace

Result<std::shared_ptr<const Model>> LoadModel(const std::string& path,
                                               const LoadOptions& options) {
  Result<std::shared_ptr<const MkimFile>> file = MkimFile::Open(path);
  if (!file) return Fail(file.error());
  const Architecture architecture = (*file)->config().arch;
  for (const ArchitectureLoader& loader : kLoaders) {
    if (loader.architecture == architecture) return loader.load(std::move(*file), options);
  }
  return Fail(ErrorCode::kUnsupported,
              (*file)->path() + ": this build does not run models of the architecture " +
                  std::string(ArchitectureName(architecture)),
              "use a Kimi K3 or DeepSeek-V4 model");
}

}  // namespace mk
