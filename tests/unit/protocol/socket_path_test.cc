#include "protocol/socket_path.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "protocol/home.h"

namespace mk::protocol {
namespace {

namespace fs = std::filesystem;

class SocketPath : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/mk-path-XXXXXX";
    root_ = ::mkdtemp(name);
    for (const char* variable : kVariables) ::unsetenv(variable);
  }
  void TearDown() override { fs::remove_all(root_); }

  static constexpr const char* kVariables[] = {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME",
                                               "XDG_STATE_HOME", "MICROKIMI_SOCKET"};
  std::string root_;
};

TEST_F(SocketPath, TheRuntimeFolderComesFirst) {
  ::setenv("XDG_RUNTIME_DIR", root_.c_str(), 1);
  ::setenv("XDG_CACHE_HOME", "/elsewhere", 1);
  const auto paths = FindSocketPaths();
  ASSERT_TRUE(paths);
  EXPECT_EQ(paths->directory, root_ + "/microkimi");
  EXPECT_EQ(paths->socket, root_ + "/microkimi/microkimid.sock");
  EXPECT_EQ(paths->lock, root_ + "/microkimi/microkimid.lock");
  EXPECT_NE(paths->start_lock, paths->lock);
}

TEST_F(SocketPath, RelativeVariablesAreIgnored) {
  ::setenv("XDG_RUNTIME_DIR", "relative", 1);
  ::setenv("XDG_CACHE_HOME", root_.c_str(), 1);
  const auto paths = FindSocketPaths();
  ASSERT_TRUE(paths);
  EXPECT_EQ(paths->socket.find("relative"), std::string::npos);
  EXPECT_EQ(paths->socket[0], '/');
}

TEST_F(SocketPath, WithoutHomeTheUserDatabaseTells) {
  const char* home = std::getenv("HOME");
  const std::string before = home != nullptr ? home : "";
  const passwd* entry = ::getpwuid(::geteuid());
  ASSERT_NE(entry, nullptr);
  const std::string known = entry->pw_dir;
  ::setenv("HOME", "/elsewhere", 1);
  EXPECT_EQ(HomeDirectory(), "/elsewhere");
  EXPECT_EQ(*StateDirectory(), "/elsewhere/.local/state/microkimi");
  ::setenv("HOME", "relative", 1);
  EXPECT_EQ(HomeDirectory(), known);
  ::unsetenv("HOME");
  EXPECT_EQ(HomeDirectory(), known);
  EXPECT_EQ(*StateDirectory(), known + "/.local/state/microkimi");
  EXPECT_TRUE(FindSocketPaths());
  if (home != nullptr) ::setenv("HOME", before.c_str(), 1);
}

TEST_F(SocketPath, TheOptionBeatsTheVariable) {
  ::setenv("MICROKIMI_SOCKET", "/a/b.sock", 1);
  EXPECT_EQ(FindSocketPaths()->socket, "/a/b.sock");
  EXPECT_EQ(FindSocketPaths("/c/d")->socket, "/c/d");
  EXPECT_EQ(FindSocketPaths("/c/d")->lock, "/c/d.lock");
  EXPECT_EQ(FindSocketPaths("/c/d")->directory, "/c");
}

TEST_F(SocketPath, TwoSocketsInOneFolderShareNoLock) {
  EXPECT_NE(PathsOfSocket("/c/one.sock")->lock, PathsOfSocket("/c/two.sock")->lock);
}

TEST_F(SocketPath, RelativePathsBecomeAbsolute) {
  EXPECT_EQ(PathsOfSocket("x.sock")->socket, fs::current_path().string() + "/x.sock");
}

TEST_F(SocketPath, LongPathsNameTheLimit) {
  const std::string longest = "/" + std::string(MaxSocketPathBytes() - 1, 's');
  EXPECT_TRUE(PathsOfSocket(longest));
  const auto paths = PathsOfSocket(longest + "s");
  ASSERT_FALSE(paths);
  EXPECT_NE(paths.error().message.find("107"), std::string::npos) << paths.error().message;
  EXPECT_FALSE(PathsOfSocket("/folder/"));
  EXPECT_FALSE(PathsOfSocket(std::string_view("/a\0b", 4))) << "would name another file";
}

TEST_F(SocketPath, TheFolderIsMadePrivate) {
  const std::string folder = root_ + "/a/b";
  ::umask(0);
  ASSERT_TRUE(PrepareSocketDirectory(folder));
  struct stat info = {};
  ::stat(folder.c_str(), &info);
  EXPECT_EQ(info.st_mode & 07777u, 0700u);
  EXPECT_TRUE(PrepareSocketDirectory(folder)) << "a second time";
}

TEST_F(SocketPath, AFolderThatOthersMayEnterIsRefused) {
  for (mode_t mode : {0750, 0701, 0777, 01777}) {
    const std::string folder = root_ + "/open";
    ::mkdir(folder.c_str(), 0700);
    ::chmod(folder.c_str(), mode);
    const auto status = CheckSocketDirectory(folder);
    ASSERT_FALSE(status) << std::oct << mode;
    EXPECT_EQ(status.error().code, ErrorCode::kPermissionDenied);
    // Never for a folder that is everybody's, such as /tmp.
    const bool shared = (mode & S_ISVTX) != 0;
    EXPECT_EQ(status.error().hint.find("chmod 700") == std::string::npos, shared);
  }
}

TEST_F(SocketPath, LinksFilesAndStrangersAreRefused) {
  const std::string real = root_ + "/real";
  ::mkdir(real.c_str(), 0700);
  EXPECT_TRUE(CheckSocketDirectory(real));
  const std::string link = root_ + "/link";
  ASSERT_EQ(::symlink(real.c_str(), link.c_str()), 0);
  EXPECT_NE(CheckSocketDirectory(link).error().message.find("symbolic link"), std::string::npos);
  EXPECT_NE(CheckSocketDirectory("/dev/null").error().message.find("is not a folder"),
            std::string::npos);
  EXPECT_EQ(CheckSocketDirectory(root_ + "/none").error().code, ErrorCode::kNotFound);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(real.c_str(), 65534, 65534), 0);
    EXPECT_NE(CheckSocketDirectory(real).error().message.find("65534"), std::string::npos);
  } else {
    EXPECT_NE(CheckSocketDirectory("/root").error().message.find("user 0"), std::string::npos);
  }
}

}  // namespace
}  // namespace mk::protocol
