#include "daemon/program_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <string_view>
#include <utility>

namespace mk::daemon {
namespace {

// A look costs one stat().
constexpr auto kInterval = std::chrono::seconds(2);
// What the kernel puts behind the path of a file that was removed.
constexpr std::string_view kDeleted = " (deleted)";
constexpr const char* kSelf = "/proc/self/exe";

std::string OwnPath() {
  char buffer[PATH_MAX];
  const ssize_t size = readlink(kSelf, buffer, sizeof buffer);
  if (size <= 0 || size >= static_cast<ssize_t>(sizeof buffer)) return {};
  std::string path(buffer, static_cast<size_t>(size));
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  return path;
}

}  // namespace

std::optional<ProgramFile::Mark> ProgramFile::MarkOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return Mark{info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
}

ProgramFile::ProgramFile(std::string path) : path_(std::move(path)), own_(MarkOf(path_)) {}

ProgramFile ProgramFile::OfThisProcess() {
  ProgramFile file(OwnPath());
  file.own_ = MarkOf(kSelf);
  return file;
}

bool ProgramFile::Look(Clock::time_point now) {
  if (!own_ || (looked_ && now - *looked_ < kInterval)) return replaced_;
  looked_ = now;
  const auto before = std::exchange(other_, MarkOf(path_));
  replaced_ = other_ && other_ != own_ && other_ == before && access(path_.c_str(), X_OK) == 0;
  return replaced_;
}

}  // namespace mk::daemon
