#include "daemon/boot.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "daemon/activation.h"
#include "daemon/errors.h"
#include "daemon/listener.h"
#include "protocol/messages.h"

namespace mk::daemon {
namespace {

constexpr auto kPeerStart = std::chrono::seconds(10);  // for another daemon that is starting
// For a daemon that was started without systemd and sees that its socket's path is systemd's now:
// it notices within a second, ends what it runs and leaves.
constexpr auto kPeerLeave = std::chrono::seconds(30);
constexpr int kHelloMilliseconds = 2000;
// For an answer from behind somebody else's listening socket.
constexpr int kStrangerMilliseconds = 5000;

Result<UniqueFd> TakeSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) {
    return Fail(ErrorCode::kIo, "cannot block signals");
  }
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return Fail(ErrorCode::kIo, "cannot create a signalfd");
  return fd;
}

// Asks the daemon on the socket who it is. The socket accepts connections. Empty: no answer.
std::string AskWho(const std::string& socket, int patience_ms = kHelloMilliseconds) {
  try {
    zmq::context_t context(1);
    zmq::socket_t dealer(context, zmq::socket_type::dealer);
    dealer.set(zmq::sockopt::linger, 0);
    dealer.set(zmq::sockopt::rcvtimeo, patience_ms);
    dealer.connect("ipc://" + socket);
    protocol::Request hello;
    hello.id = 1;
    hello.args = protocol::HelloArgs{protocol::kProtocolMin, protocol::kProtocolMax,
                                     std::string(protocol::BuildId()), "microkimid", 0};
    dealer.send(zmq::buffer(protocol::EncodeRequest(hello)), zmq::send_flags::none);
    zmq::message_t answer;
    if (!dealer.recv(answer)) return {};
    auto reply = protocol::DecodeReply(answer.to_string_view(), protocol::Op::kHello);
    if (!reply) return {};
    if (const auto* done = std::get_if<protocol::HelloDone>(&reply->body)) {
      return done->version + " (pid " + std::to_string(done->pid) + ")";
    }
  } catch (const zmq::error_t&) {
    return {};
  }
  return {};
}

tl::unexpected<protocol::Error> HeldByOther(const protocol::SocketPaths& paths) {
  return protocol::Fail(protocol::ErrorCode::kUnreachable,
                        "a daemon (pid " + std::to_string(LockFile::ReadPid(paths.lock)) +
                            ") holds " + paths.lock + " but does not answer on " + paths.socket,
                        "end it, or choose another socket with --socket");
}

AlreadyRunning Running(const std::string& who, const protocol::SocketPaths& paths) {
  return {"microkimid " + who + " runs already on " + paths.socket};
}

// The lock is held: its holder serves the socket, is about to, or leaves; then the lock is ours.
protocol::Result<std::variant<LockFile, AlreadyRunning>> WaitForOther(
    const protocol::SocketPaths& paths) {
  const auto give_up = std::chrono::steady_clock::now() + kPeerStart;
  while (std::chrono::steady_clock::now() < give_up) {
    if (Probe(paths.socket) == ProbeResult::kLive) {
      const std::string who = AskWho(paths.socket);
      if (!who.empty()) return Running(who, paths);
    }
    if (auto lock = LockFile::Acquire(paths.lock)) return std::move(*lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return HeldByOther(paths);
}

// The lock is free, but somebody listens: systemd, which starts a daemon for whoever connects, or
// another program. That daemon needs the lock, so nobody may hold it meanwhile.
protocol::Result<AlreadyRunning> AskListener(const protocol::SocketPaths& paths) {
  const std::string who = AskWho(paths.socket, kStrangerMilliseconds);
  if (!who.empty()) return Running(who, paths);
  return protocol::Fail(
      protocol::ErrorCode::kBusy,
      "another program listens on " + paths.socket + " without holding " + paths.lock,
      "end it, or choose another socket with --socket");
}

protocol::Result<protocol::SocketPaths> PathsFor(const Options& options, const UniqueFd& passed) {
  if (!passed) return protocol::FindSocketPaths(options.socket);
  return protocol::PathsOfSocket(BoundPath(passed.get()));
}

using BootResult = protocol::Result<std::variant<Booted, AlreadyRunning>>;

BootResult Outcome(protocol::Result<AlreadyRunning> running) {
  if (!running) return protocol::Fail(running.error());
  return std::variant<Booted, AlreadyRunning>(std::move(*running));
}

// The lock, and then the socket: the one that was passed, or one of our own.
BootResult TakeSocket(Booted booted, UniqueFd passed) {
  const protocol::SocketPaths& paths = booted.paths;
  // Behind systemd's socket nobody else can answer: whoever holds the lock must leave.
  auto lock = passed ? LockFile::Acquire(paths.lock, kPeerLeave) : LockFile::Acquire(paths.lock);
  if (!lock) {
    if (lock.error().code != ErrorCode::kIncompatible) {
      return protocol::Fail(ToProtocol(lock.error()));
    }
    if (passed) return HeldByOther(paths);
    auto other = WaitForOther(paths);
    if (!other) return protocol::Fail(other.error());
    if (auto* running = std::get_if<AlreadyRunning>(&*other)) return Outcome(std::move(*running));
    lock = std::move(std::get<LockFile>(*other));
  }
  booted.lock = std::move(*lock);
  if (passed) {
    booted.listening = std::move(passed);
    return std::variant<Booted, AlreadyRunning>(std::move(booted));
  }
  // A socket in use is never taken away.
  if (Probe(paths.socket) == ProbeResult::kLive) {
    booted.lock = LockFile();
    return Outcome(AskListener(paths));
  }
  auto listening = Listen(paths.socket);
  if (!listening) return protocol::Fail(ToProtocol(listening.error()));
  booted.listening = std::move(*listening);
  return std::variant<Booted, AlreadyRunning>(std::move(booted));
}

}  // namespace

BootResult Boot(const Options& options) {
  umask(077);
  Booted booted;
  booted.fds = RaiseFdLimit();
  auto signals = TakeSignals();
  if (!signals) return protocol::Fail(ToProtocol(signals.error()));
  booted.signals = std::move(*signals);

  auto passed = TakeActivationSocket();
  if (!passed) return protocol::Fail(ToProtocol(passed.error()));
  booted.activated = static_cast<bool>(*passed);
  auto paths = PathsFor(options, *passed);
  if (!paths) return protocol::Fail(paths.error());
  booted.paths = *paths;
  if (auto status = protocol::PrepareSocketDirectory(paths->directory); !status) {
    return protocol::Fail(status.error());
  }
  return TakeSocket(std::move(booted), std::move(*passed));
}

}  // namespace mk::daemon
