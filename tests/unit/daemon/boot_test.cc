// Lock, listening socket, probe, socket activation.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "daemon/listener.h"
#include "daemon/lock_file.h"
#include "protocol/socket_path.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

bool ConnectTo(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST(LockFile, SecondHolderIsRefusedAndReadsThePid) {
  TempDir dir;
  auto first = LockFile::Acquire(dir / "lock");
  ASSERT_TRUE(first);
  auto second = LockFile::Acquire(dir / "lock");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIncompatible);
  EXPECT_EQ(LockFile::ReadPid(dir / "lock"), getpid());
}

TEST(LockFile, IsFreeAgainWhenItsProcessWasKilled) {
  TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto lock = LockFile::Acquire(dir / "lock");
    [[maybe_unused]] const auto n = write(ready[1], lock ? "y" : "n", 1);
    pause();
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(LockFile::Acquire(dir / "lock"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(LockFile::Acquire(dir / "lock"));
  close(ready[0]);
  close(ready[1]);
}

TEST(LockFile, NoticesThatItsFileWasRemoved) {
  TempDir dir;
  auto lock = LockFile::Acquire(dir / "lock");
  ASSERT_TRUE(lock);
  EXPECT_TRUE(lock->StillThere());
  unlink((dir / "lock").c_str());
  EXPECT_FALSE(lock->StillThere());
  // Another file of the same name is not the lock either.
  std::ofstream(dir / "lock") << "x";
  EXPECT_FALSE(lock->StillThere());
}

TEST(LockFile, DoesNotFollowALink) {
  TempDir dir;
  std::ofstream(dir / "precious") << "precious";
  ASSERT_EQ(symlink((dir / "precious").c_str(), (dir / "lock").c_str()), 0);
  auto lock = LockFile::Acquire(dir / "lock");
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().code, ErrorCode::kPermissionDenied);
  std::string content;
  std::ifstream(dir / "precious") >> content;
  EXPECT_EQ(content, "precious");
}

TEST(Listen, TooLongAPathNamesTheLimit) {
  TempDir dir;
  const size_t limit = protocol::MaxSocketPathBytes();
  const std::string longest = dir / std::string(limit - dir.path().size() - 1, 'x');
  EXPECT_TRUE(Listen(longest));
  auto refused = Listen(longest + "x");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("the limit is 107"), std::string::npos)
      << refused.error().message;
}

TEST(Listen, SocketIsPrivateWhateverTheUmask) {
  TempDir dir;
  const mode_t before = umask(0);
  auto fd = Listen(dir / "s");
  umask(before);
  ASSERT_TRUE(fd);
  struct stat info {};
  ASSERT_EQ(stat((dir / "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_TRUE(ConnectTo(dir / "s"));
  EXPECT_EQ(BoundPath(fd->get()), dir / "s");
}

TEST(Listen, ReplacesAStaleSocketButNothingElse) {
  TempDir dir;
  ASSERT_TRUE(Listen(dir / "s"));  // closed at once: stale
  EXPECT_EQ(Probe(dir / "s"), ProbeResult::kNobody);
  auto fd = Listen(dir / "s");
  ASSERT_TRUE(fd);
  EXPECT_EQ(Probe(dir / "s"), ProbeResult::kLive);

  std::ofstream(dir / "file") << "precious";
  EXPECT_EQ(Probe(dir / "file"), ProbeResult::kForeign);
  auto refused = Listen(dir / "file");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("not a socket"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(dir / "file"));
}

TEST(Probe, TellsNobodyFromLive) {
  TempDir dir;
  EXPECT_EQ(Probe(dir / "none"), ProbeResult::kNobody);
  auto fd = Listen(dir / "s");
  ASSERT_TRUE(fd);
  EXPECT_EQ(Probe(dir / "s"), ProbeResult::kLive);
}

TEST(Activation, NothingPassedIsNoError) {
  unsetenv("LISTEN_PID");
  unsetenv("LISTEN_FDS");
  auto fd = TakeActivationSocket();
  ASSERT_TRUE(fd);
  EXPECT_FALSE(*fd);
}

TEST(Activation, DescriptorsOfAnotherProcessAreLeftAlone) {
  setenv("LISTEN_PID", "1", 1);
  setenv("LISTEN_FDS", "1", 1);
  auto fd = TakeActivationSocket();
  ASSERT_TRUE(fd);
  EXPECT_FALSE(*fd);
  EXPECT_EQ(getenv("LISTEN_FDS"), nullptr);
}

TEST(Activation, SeveralSocketsAreRefused) {
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  setenv("LISTEN_FDS", "2", 1);
  EXPECT_FALSE(TakeActivationSocket());
}

}  // namespace
}  // namespace mk::daemon
