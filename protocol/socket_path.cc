#include "protocol/socket_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "protocol/home.h"

namespace mk::protocol {
namespace {

// Relative values of XDG variables are to be ignored (XDG base directory specification).
std::string AbsoluteVariable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

bool IsOurDirectory(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

std::string MakeAbsolute(std::string_view path) {
  if (path.starts_with('/')) return std::string(path);
  char buffer[4096];
  if (::getcwd(buffer, sizeof(buffer)) == nullptr) return std::string(path);
  return std::string(buffer) + "/" + std::string(path);
}

Result<std::string> DefaultDirectory() {
  if (const std::string runtime = AbsoluteVariable("XDG_RUNTIME_DIR"); !runtime.empty()) {
    return runtime + "/microkimi";
  }
  const std::string run_user = "/run/user/" + std::to_string(::geteuid());
  if (IsOurDirectory(run_user)) return run_user + "/microkimi";
  if (const std::string cache = UserFolder("XDG_CACHE_HOME", ".cache"); !cache.empty()) {
    return cache + "/microkimi/run";
  }
  return Fail(ErrorCode::kBadRequest, "no place for the daemon's socket",
              "set XDG_RUNTIME_DIR to a folder of yours, or give --socket PATH");
}

Status DirectoryError(ErrorCode code, const std::string& directory, const std::string& why,
                      const std::string& hint) {
  return Fail(code, "socket folder " + directory + " " + why, hint);
}

}  // namespace

size_t MaxSocketPathBytes() {
  return sizeof(sockaddr_un::sun_path) - 1;
}

Result<SocketPaths> PathsOfSocket(std::string_view socket_path) {
  SocketPaths paths;
  paths.socket = MakeAbsolute(socket_path);
  if (paths.socket.find('\0') != std::string::npos || paths.socket.ends_with('/')) {
    return Fail(ErrorCode::kBadRequest, "not the path of a socket: " + paths.socket,
                "give the path of a file, for example /tmp/mk/daemon.sock");
  }
  if (paths.socket.size() > MaxSocketPathBytes()) {
    return Fail(ErrorCode::kBadRequest,
                "socket path is too long: " + std::to_string(paths.socket.size()) + " bytes, " +
                    std::to_string(MaxSocketPathBytes()) + " are allowed: " + paths.socket,
                "give a shorter one with --socket, MICROKIMI_SOCKET or XDG_RUNTIME_DIR");
  }
  const size_t slash = paths.socket.rfind('/');
  paths.directory = slash == 0 ? "/" : paths.socket.substr(0, slash);
  std::string stem = paths.socket;
  if (stem.ends_with(".sock")) stem.resize(stem.size() - 5);
  paths.lock = stem + ".lock";
  paths.start_lock = stem + ".start.lock";
  paths.pid = stem + ".pid";
  return paths;
}

Result<SocketPaths> FindSocketPaths(std::string_view override_path) {
  if (!override_path.empty()) return PathsOfSocket(override_path);
  if (const char* named = std::getenv("MICROKIMI_SOCKET"); named != nullptr && named[0] != '\0') {
    return PathsOfSocket(named);
  }
  return UsualSocketPaths();
}

Result<SocketPaths> UsualSocketPaths() {
  Result<std::string> directory = DefaultDirectory();
  if (!directory) return Fail(directory.error());
  return PathsOfSocket(*directory + "/microkimid.sock");
}

Status CheckSocketDirectory(const std::string& directory) {
  struct stat info = {};
  if (::lstat(directory.c_str(), &info) != 0) {
    const int error = errno;
    if (error == ENOENT) {
      return DirectoryError(ErrorCode::kNotFound, directory, "does not exist", "");
    }
    return DirectoryError(ErrorCode::kPermissionDenied, directory,
                          std::string("cannot be looked at: ") + std::strerror(error), "");
  }
  if (S_ISLNK(info.st_mode)) {
    return DirectoryError(ErrorCode::kPermissionDenied, directory, "is a symbolic link",
                          "remove the link, or name another socket with --socket");
  }
  if (!S_ISDIR(info.st_mode)) {
    return DirectoryError(ErrorCode::kPermissionDenied, directory, "is not a folder",
                          "remove it, or name another socket with --socket");
  }
  if (info.st_uid != ::geteuid()) {
    return DirectoryError(ErrorCode::kPermissionDenied, directory,
                          "belongs to user " + std::to_string(info.st_uid) + ", not to you",
                          "set XDG_RUNTIME_DIR to a folder of yours, or give --socket PATH");
  }
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", info.st_mode & 07777u);
    return DirectoryError(ErrorCode::kPermissionDenied, directory,
                          std::string("is open to others (mode ") + mode + ")",
                          (info.st_mode & S_ISVTX) != 0
                              ? "it is shared; name a socket in a folder of your own"
                              : "chmod 700 " + directory);
  }
  return {};
}

Status PrepareSocketDirectory(const std::string& directory) {
  struct stat info = {};
  if (::lstat(directory.c_str(), &info) != 0 && errno == ENOENT) {
    if (Status made = MakeFolders(directory); !made) {
      made.error().hint = "set XDG_RUNTIME_DIR to a folder of yours, or give --socket PATH";
      return made;
    }
  }
  return CheckSocketDirectory(directory);
}

Result<std::string> StateDirectory() {
  if (const std::string state = UserFolder("XDG_STATE_HOME", ".local/state"); !state.empty()) {
    return state + "/microkimi";
  }
  return Fail(ErrorCode::kBadRequest, "no place for the daemon's state",
              "set XDG_STATE_HOME or HOME to a folder of yours");
}

}  // namespace mk::protocol
