#include "daemon/dirs.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "cli/folders.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

// What came with the program: in its share/microkimi, or in its build tree.
fs::path Bundled(const char* installed, const char* built) {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path prefix = executable.parent_path().parent_path();
  const fs::path share = prefix / "share" / "microkimi" / installed;
  return fs::is_directory(share, error) ? share : prefix / built;
}

}  // namespace

fs::path StateDirectory() {
  return cli::StateFolder();
}
fs::path ConfigFile() {
  return cli::ConfigFile();
}
fs::path UserModels() {
  return cli::ModelsFolder();
}

fs::path CacheDirectory() {
  return cli::CacheFolder();
}

fs::path BundledModels() {
  return Bundled("models", "models");
}
fs::path BundledEvaluation() {
  return Bundled("eval", "eval/data");
}

Status MakePrivateDirectory(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  fs::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return Fail(errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
                "cannot create " + path.string() + ": " + std::strerror(errno));
  }
  return {};
}

}  // namespace mk::daemon
