#include "engine/base/private_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "engine/base/file.h"

namespace mk {

Status CheckPrivateFolder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Fail(SystemError(errno, "examine", path));
  const char* problem = !S_ISDIR(info.st_mode)       ? " is not a directory"
                        : info.st_uid != ::geteuid() ? " belongs to another user"
                        : (info.st_mode & 022) != 0  ? " can be written to by others"
                                                     : nullptr;
  if (problem == nullptr) return {};
  return Fail(ErrorCode::kPermissionDenied, path + problem, "remove it, or close it to others");
}

Status MakePrivateFolder(const std::string& path) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (std::filesystem::path at = path; !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
    if (at == at.parent_path()) break;
  }
  for (; !missing.empty(); missing.pop_back()) {
    if (::mkdir(missing.back().c_str(), 0700) != 0 && errno != EEXIST) {
      return Fail(SystemError(errno, "create", missing.back().string()));
    }
  }
  return CheckPrivateFolder(path);
}

}  // namespace mk
