#include "protocol/log_path.h"

#include <cstdint>
#include <cstdio>

#include "protocol/socket_path.h"

namespace mk::protocol {
namespace {

// FNV-1a of 64 bits.
uint64_t Digest(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

// What stands in the names of a daemon's own files: nothing, or "-" and a digest of its socket.
std::string OwnMark(const std::string& socket) {
  // No usual one where no variable tells its place.
  const Result<SocketPaths> usual = UsualSocketPaths();
  if (usual && usual->socket == socket) return {};
  char mark[32];
  std::snprintf(mark, sizeof(mark), "-%016llx", static_cast<unsigned long long>(Digest(socket)));
  return mark;
}

}  // namespace

Result<std::string> LogFileOf(const std::string& socket) {
  Result<std::string> directory = StateDirectory();
  if (!directory) return directory;
  return *directory + "/microkimid" + OwnMark(socket) + ".log";
}

Result<std::string> JobFolderOf(const std::string& socket) {
  Result<std::string> directory = StateDirectory();
  if (!directory) return directory;
  return *directory + "/jobs" + OwnMark(socket);
}

Result<std::string> SessionFolderOf(const std::string& socket) {
  Result<std::string> directory = StateDirectory();
  if (!directory) return directory;
  return *directory + "/sessions" + OwnMark(socket);
}

std::string RotatedLog(const std::string& file, size_t number) {
  if (number == 0) return file;
  const size_t dot = file.rfind('.');
  const size_t slash = file.rfind('/');
  const bool extension =
      dot != std::string::npos && (slash == std::string::npos || dot > slash + 1);
  const size_t end = extension ? dot : file.size();
  return file.substr(0, end) + "." + std::to_string(number) + file.substr(end);
}

}  // namespace mk::protocol
