// The client's connection against libzmq itself.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "client/access.h"
#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using testing::FakeDaemon;
using testing::TempFolder;

protocol::SocketPaths PathsFor(const std::string& socket) {
  return protocol::PathsOfSocket(socket).value();
}

// Answers every tokenize with its own text.
void Echo(const protocol::Request& request, const FakeDaemon::Send& send) {
  if (const auto* args = std::get_if<protocol::TokenizeArgs>(&request.args)) {
    send(request.id, 0, protocol::TokenizeDone{{}, {args->text}, 0});
  } else {
    send(request.id, 0, protocol::PingDone{1, 2});
  }
}

std::string EchoOf(Session& session, const std::string& text) {
  protocol::TokenizeArgs args;
  args.text = text;
  auto done = AskFor<protocol::TokenizeDone>(session, args);
  EXPECT_TRUE(done.has_value()) << (done ? "" : done.error().message);
  return done ? done->pieces.at(0) : "";
}

TEST(Connection, ARouterOfLibzmqAnswers) {
  FakeDaemon daemon(Echo);
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value()) << session.error().error.message;
  EXPECT_EQ(EchoOf(*session, "hello"), "hello");
  EXPECT_EQ(session->Hello(After(milliseconds(1000)))->build_id, "fake");
  const auto hello = daemon.requests_of<protocol::HelloArgs>().at(0);
  EXPECT_EQ(hello.build_id, protocol::BuildId());
}

TEST(Connection, FramesOfEverySizeArrive) {
  FakeDaemon daemon(Echo);
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  for (size_t size : {0, 1, 150, 190, 200, 255, 256, 65535, 65536, 70000, 4 << 20, 15 << 20}) {
    const std::string text(size, 'x');
    EXPECT_TRUE(EchoOf(*session, text) == text) << size;
  }
}

TEST(Connection, ManyMessagesAtOnceArriveInOrder) {
  FakeDaemon daemon([](const protocol::Request& request, const FakeDaemon::Send& send) {
    for (uint32_t i = 0; i < 5000; ++i) {
      send(request.id, i, protocol::TokenChunk{i, 1, "t", "", {}, {}});
    }
    send(request.id, 5000, protocol::PingDone{});
  });
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  ASSERT_TRUE(session->Send(protocol::PingArgs{}).has_value());
  uint64_t next = 0;
  while (next <= 5000) {
    auto reply = session->Wait(After(kControlTimeout));
    ASSERT_TRUE(reply.has_value()) << reply.error().message;
    if (!*reply && next == 0) continue;  // hello
    ASSERT_TRUE(reply->has_value()) << "no reply " << next;
    ASSERT_EQ((*reply)->seq, next++);
  }
}

TEST(Connection, HeartbeatsOfTheRouterAreAnswered) {
  // libzmq drops a peer that does not answer its PING within the interval.
  FakeDaemon daemon(Echo, 100);
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  EXPECT_EQ(EchoOf(*session, "before"), "before");
  const Deadline end = After(milliseconds(1000));
  while (Clock::now() < end) {
    auto reply = session->Wait(end);
    ASSERT_TRUE(reply.has_value()) << reply.error().message;
  }
  EXPECT_EQ(EchoOf(*session, "after"), "after");
}

ConnectFailure FailureAt(const std::string& socket) {
  auto session = ConnectSession(PathsFor(socket));
  EXPECT_FALSE(session.has_value());
  return session ? ConnectFailure{} : session.error();
}

TEST(Connection, NoSocketIsNobody) {
  const TempFolder folder;
  const ConnectFailure failure = FailureAt(folder / "d.sock");
  EXPECT_EQ(failure.absence, Absence::kNobody);
  EXPECT_EQ(failure.error.code, protocol::ErrorCode::kUnreachable);
  EXPECT_NE(failure.error.message.find("no socket"), std::string::npos);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// A socket that was bound and left behind, as by a process that was killed.
void LeaveSocketBehind(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = AddressOf(path);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

TEST(Connection, ASocketThatADeadDaemonLeftIsNobody) {
  const TempFolder folder;
  LeaveSocketBehind(folder / "d.sock");
  const ConnectFailure failure = FailureAt(folder / "d.sock");
  EXPECT_EQ(failure.absence, Absence::kNobody);
  EXPECT_NE(failure.error.message.find("nobody listens"), std::string::npos);
}

TEST(Connection, AFileInItsPlaceIsNotNobody) {
  const TempFolder folder;
  std::ofstream(folder / "d.sock") << "x";
  EXPECT_EQ(FailureAt(folder / "d.sock").absence, Absence::kOther);
}

TEST(Connection, ASocketWithoutPermissionIsNotNobody) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may connect to everything";
  const TempFolder folder;
  LeaveSocketBehind(folder / "d.sock");
  ::chmod((folder / "d.sock").c_str(), 0);
  const ConnectFailure failure = FailureAt(folder / "d.sock");
  EXPECT_EQ(failure.absence, Absence::kOther);
  EXPECT_NE(failure.error.message.find("permission"), std::string::npos);
}

TEST(Connection, ADaemonThatAcceptsNobodyHasADeadline) {
  const TempFolder folder;
  const sockaddr_un address = AddressOf(folder / "d.sock");
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(listening.get(), generic, sizeof(address)), 0);
  ASSERT_EQ(::listen(listening.get(), 0), 0);
  std::vector<UniqueFd> waiting;  // until its queue is full
  int result = 0;
  while (result == 0 && waiting.size() < 10) {
    waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    result = ::connect(waiting.back().get(), generic, sizeof(address));
  }
  ASSERT_NE(result, 0);
  auto connection = Connection::Connect(folder / "d.sock", After(milliseconds(100)));
  ASSERT_FALSE(connection.has_value());
  EXPECT_EQ(connection.error().absence, Absence::kOther);
  EXPECT_NE(connection.error().error.message.find("accepts no connection"), std::string::npos);
}

TEST(Connection, ADaemonOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a process of another user";
  const TempFolder folder;
  const sockaddr_un address = AddressOf(folder / "d.sock");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    // The kernel keeps who it was that called listen().
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    const bool bound =
        ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    const bool serves = bound && ::setuid(65534) == 0 && ::listen(fd, 5) == 0;
    if (::write(ready[1], serves ? "y" : "n", 1) == 1) ::pause();
    ::_exit(0);
  }
  char answer = 0;
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  const ConnectFailure failure = FailureAt(folder / "d.sock");
  EXPECT_EQ(failure.absence, Absence::kOther);
  EXPECT_NE(failure.error.message.find("65534"), std::string::npos) << failure.error.message;
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(Connection, AFolderThatOthersMayEnterIsRefused) {
  FakeDaemon daemon(Echo);
  ::chmod(daemon.folder().path().c_str(), 0755);
  const ConnectFailure failure = FailureAt(daemon.socket());
  EXPECT_EQ(failure.absence, Absence::kOther);
  EXPECT_NE(failure.error.message.find("0755"), std::string::npos);
}

// Accepts one connection, writes some bytes and keeps it open, or closes it.
class Stranger {
 public:
  Stranger(const std::string& path, std::string says, bool closes)
      : listening_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address = AddressOf(path);
    ::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    ::listen(listening_.get(), 1);
    thread_ = std::thread([this, says, closes] {
      accepted_.Reset(::accept(listening_.get(), nullptr, nullptr));
      EXPECT_EQ(::write(accepted_.get(), says.data(), says.size()),
                static_cast<ssize_t>(says.size()));
      if (closes) accepted_.Reset();
    });
  }
  ~Stranger() { thread_.join(); }

 private:
  UniqueFd listening_;
  UniqueFd accepted_;
  std::thread thread_;
};

TEST(Connection, AStrangerIsToldApart) {
  const TempFolder folder;
  const Stranger stranger(folder / "d.sock", "HTTP/1.1 400 Bad Request\r\n\r\n", false);
  auto session = ConnectSession(PathsFor(folder / "d.sock"));
  ASSERT_TRUE(session.has_value());
  const auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().message.find("does not speak"), std::string::npos);
}

TEST(Connection, ADaemonThatSaysNothingHasADeadline) {
  const TempFolder folder;
  const Stranger stranger(folder / "d.sock", "", false);
  auto session = ConnectSession(PathsFor(folder / "d.sock"));
  ASSERT_TRUE(session.has_value());
  const auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{}, milliseconds(50));
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code, protocol::ErrorCode::kUnreachable);
}

TEST(Connection, ADaemonThatClosesIsNoticed) {
  const TempFolder folder;
  const Stranger stranger(folder / "d.sock", "", true);
  auto session = ConnectSession(PathsFor(folder / "d.sock"));
  ASSERT_TRUE(session.has_value());
  const auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().message.find("closed"), std::string::npos);
}

TEST(Session, ARefusedHelloIsTheErrorOfTheFirstRequest) {
  const protocol::Error too_old{protocol::ErrorCode::kUnsupportedVersion, "too old", "restart", {}};
  FakeDaemon daemon(Echo, 0, too_old);
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  const auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_TRUE(done.error() == too_old);
}

TEST(Session, ARefusalWithoutAnIdIsTheErrorOfTheRequest) {
  FakeDaemon daemon([](const protocol::Request&, const FakeDaemon::Send& send) {
    send(0, 0, protocol::Error{protocol::ErrorCode::kBadRequest, "cut off", "", {}});
  });
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  const auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().message, "cut off");
}

TEST(Session, RepliesToOthersRequestsAreIgnored) {
  FakeDaemon daemon([](const protocol::Request& request, const FakeDaemon::Send& send) {
    send(request.id + 100, 0, protocol::Accepted{});
    send(request.id, 0, protocol::PingDone{1, 2});
  });
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  EXPECT_TRUE(AskFor<protocol::PingDone>(*session, protocol::PingArgs{}).has_value());
}

// Answers everything as a daemon does that has never heard of it.
void Refuse(const protocol::Request& request, const FakeDaemon::Send& send) {
  send(request.id, 0,
       protocol::Error{
           protocol::ErrorCode::kBadRequest, "args.min_p is no field that is known here", {}, {}});
}

TEST(Session, AnOlderDaemonThatDoesNotKnowAFieldIsHintedAt) {
  FakeDaemon daemon(Refuse);
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().hint.find("`mk restart`"), std::string::npos) << done.error().hint;
  EXPECT_NE(done.error().hint.find("(fake)"), std::string::npos) << done.error().hint;
}

TEST(Session, ADaemonOfThisBuildIsNotBlamed) {
  FakeDaemon daemon(Refuse, 0,
                    protocol::HelloDone{1, 1, 1, "0", std::string(protocol::BuildId()), 1});
  auto session = ConnectSession(PathsFor(daemon.socket()));
  ASSERT_TRUE(session.has_value());
  auto done = AskFor<protocol::PingDone>(*session, protocol::PingArgs{});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().hint, "");
}

}  // namespace
}  // namespace mk::client
