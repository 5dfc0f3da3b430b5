// Lock, listening socket, probe, socket activation.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "daemon/activation.h"
#include "daemon/listener.h"
#include "daemon/lock_file.h"
#include "protocol/socket_path.h"
#include "temp_dir.h"

namespace {

// The mode that the last bind() gave its path, before anybody could change it.
mode_t mode_at_bind = 0;

}  // namespace

// Takes the place of the C library's bind() in this program.
extern "C" int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  const auto result = static_cast<int>(syscall(SYS_bind, fd, address, size));
  struct stat info {};
  if (result == 0 && stat(reinterpret_cast<const sockaddr_un*>(address)->sun_path, &info) == 0) {
    mode_at_bind = info.st_mode & 0777;
  }
  return result;
}

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

// Whoever has the lock removes its file, as a cleaner might: those who opened it before must not
// take the lock of a file without a name for the lock.
TEST(LockFile, IsHeldByOneThoughItsFileIsRemovedAgainAndAgain) {
  TempDir dir;
  constexpr int kEnough = 300;
  std::atomic<int> holders{0};
  std::atomic<int> taken{0};
  std::atomic<bool> shared{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (taken < kEnough && std::chrono::steady_clock::now() < end) {
        auto lock = LockFile::Acquire(dir / "lock");
        if (!lock) continue;
        if (++holders > 1) shared = true;
        ++taken;
        std::this_thread::yield();
        --holders;
        unlink((dir / "lock").c_str());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GE(taken, kEnough);
  EXPECT_FALSE(shared);
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
  EXPECT_EQ(mode_at_bind, 0600U);
  EXPECT_TRUE(ConnectTo(dir / "s"));
  EXPECT_EQ(BoundPath(fd->get()), dir / "s");
}

TEST(Listen, AnUmaskThatTakesTheOwnersRightsDoesNoHarm) {
  TempDir dir;
  const mode_t before = umask(0777);
  auto fd = Listen(dir / "s");
  umask(before);
  ASSERT_TRUE(fd);
  struct stat info {};
  ASSERT_EQ(stat((dir / "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
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

TEST(Probe, AListenerThatAcceptsNoneYetIsLive) {
  TempDir dir;
  const UniqueFd listening(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (dir / "s").c_str(), sizeof address.sun_path - 1);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  ASSERT_EQ(bind(listening.get(), generic, sizeof address), 0);
  ASSERT_EQ(listen(listening.get(), 0), 0);
  std::vector<UniqueFd> waiting;
  int result = 0;
  while (result == 0 && waiting.size() < 10) {
    waiting.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    result = connect(waiting.back().get(), generic, sizeof address);
  }
  ASSERT_NE(result, 0) << "the queue of connections takes all";
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
  EXPECT_FALSE(SocketsArePassed());
  EXPECT_EQ(getenv("LISTEN_FDS"), nullptr);
}

// In a process of its own: what systemd passes is descriptor 3.
int WithPassedSocket(int domain, int type, bool has_path, bool listens, const char* count = "1",
                     const char* names = nullptr) {
  const pid_t child = fork();
  if (child == 0) {
    TempDir dir;
    const int fd = socket(domain, type, 0);
    if (domain == AF_UNIX) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, (dir / "s").c_str(), sizeof address.sun_path - 1);
      // The family alone: the kernel chooses an abstract address.
      const socklen_t size = has_path ? sizeof address : sizeof address.sun_family;
      if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) _exit(9);
    }
    if (listens && listen(fd, 1) != 0) _exit(9);
    if (fd != 3 && dup2(fd, 3) != 3) _exit(9);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("LISTEN_FDS", count, 1);
    unsetenv("LISTEN_FDNAMES");
    if (names != nullptr) setenv("LISTEN_FDNAMES", names, 1);
    if (!SocketsArePassed()) _exit(8);
    int code = 1;
    {
      auto passed = TakeActivationSocket();
      if (passed && *passed) {
        const bool private_to_us = (fcntl(3, F_GETFD) & FD_CLOEXEC) != 0;
        const bool never_waits = (fcntl(3, F_GETFL) & O_NONBLOCK) != 0;
        const bool all_taken = !SocketsArePassed() && getenv("LISTEN_FDNAMES") == nullptr;
        code = private_to_us && never_waits && all_taken ? 0 : 2;
      }
    }
    std::filesystem::remove_all(dir.path());
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Activation, TakesAListeningUnixStreamSocketAndNothingElse) {
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, true), 0);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, false), 1);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_DGRAM, true, false), 1);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_SEQPACKET, true, true), 1);
  EXPECT_EQ(WithPassedSocket(AF_INET, SOCK_STREAM, false, true), 1);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, false, true), 1);
}

TEST(Activation, NamesMustBeAsManyAsSockets) {
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, true, "1", "microkimid"), 0);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, true, "1", "whatever"), 0);
  EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, true, "1", "microkimid:more"), 1);
}

TEST(Activation, ANumberThatDoesNotFitIsRefused) {
  for (const char* count : {"2", "0", "", "x"}) {
    EXPECT_EQ(WithPassedSocket(AF_UNIX, SOCK_STREAM, true, true, count), 1) << count;
  }
}

}  // namespace
}  // namespace mk::daemon
