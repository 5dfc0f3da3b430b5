#include <string>
#include <utility>

#include "engine/dsv4/dsv4_model.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/k3_model.h"
#include "engine/model/footprint.h"
#include "engine/model/model.h"

namespace mk {
namespace {

struct ArchitectureLoader {
  Architecture architecture;
  Result<std::shared_ptr<const Model>> (*load)(std::shared_ptr<const MkimFile> file,
                                               const LoadOptions& options);
  Result<ModelFootprint> (*measure)(std::shared_ptr<const MkimFile> file, size_t sequence_tokens);
};

// One line per architecture that can be run.
constexpr ArchitectureLoader kLoaders[] = {
    {Architecture::kK3, k3::LoadK3, k3::MeasureK3},
    {Architecture::kDeepSeekV4, dsv4::LoadDsv4, dsv4::MeasureDsv4},
};

Result<const ArchitectureLoader*> LoaderOf(const MkimFile& file) {
  const Architecture architecture = file.config().arch;
  for (const ArchitectureLoader& loader : kLoaders) {
    if (loader.architecture == architecture) return &loader;
  }
  return Fail(ErrorCode::kUnsupported,
              file.path() + ": this build does not run models of the architecture " +
                  std::string(ArchitectureName(architecture)),
              "use a Kimi K3 or DeepSeek-V4 model");
}

}  // namespace

Result<std::shared_ptr<const Model>> LoadModel(const std::string& path,
                                               const LoadOptions& options) {
  Result<std::shared_ptr<const MkimFile>> file = MkimFile::Open(path);
  if (!file) return Fail(file.error());
  Result<const ArchitectureLoader*> loader = LoaderOf(**file);
  if (!loader) return Fail(loader.error());
  return (*loader)->load(std::move(*file), options);
}

Result<ModelFootprint> MeasureModel(std::shared_ptr<const MkimFile> file, size_t sequence_tokens) {
  Result<const ArchitectureLoader*> loader = LoaderOf(*file);
  if (!loader) return Fail(loader.error());
  return (*loader)->measure(std::move(file), sequence_tokens);
}

}  // namespace mk
