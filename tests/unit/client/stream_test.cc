// A streamed request: acknowledgements, signs of life, Ctrl-C, deadlines, readers that leave.

#include "client/stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "client/access.h"
#include "tests/unit/client/fake_daemon.h"

namespace mk::client {
namespace {

using protocol::AckArgs;
using protocol::CancelArgs;
using protocol::RunArgs;
using testing::FakeDaemon;

protocol::RunDone Done(const std::string& reason) {
  protocol::RunDone done;
  done.finish_reason = reason;
  return done;
}

// Sends accepted and `tokens` tokens, then done unless it is to wait for a cancel.
FakeDaemon::Handler Streams(uint32_t tokens, bool ends) {
  auto run_id = std::make_shared<uint64_t>(0);
  return [=](const protocol::Request& request, const FakeDaemon::Send& send) {
    if (std::holds_alternative<RunArgs>(request.args)) {
      *run_id = request.id;
      send(request.id, 0, protocol::Accepted{});
      for (uint32_t i = 0; i < tokens; ++i) {
        send(request.id, i + 1, protocol::TokenChunk{i, 1, "t", "", {}, {}});
      }
      if (ends) send(request.id, tokens + 1, Done("length"));
    } else if (const auto* cancel = std::get_if<CancelArgs>(&request.args)) {
      send(request.id, 0, protocol::CancelDone{true});
      send(cancel->request, tokens + 1, Done("cancelled"));
    } else if (std::holds_alternative<protocol::PingArgs>(request.args)) {
      send(request.id, 0, protocol::PingDone{});
    }
  };
}

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    reader_.Reset(ends[0]);
    writer_.Reset(ends[1]);
    output_ = std::make_unique<Output>(writer_.get());
    ::signal(SIGPIPE, SIG_IGN);
  }

  protocol::Result<StreamEnd> Run(FakeDaemon& daemon, const OnReply& on_reply,
                                  StreamOptions options = {}) {
    auto session = ConnectSession(protocol::PathsOfSocket(daemon.socket()).value());
    EXPECT_TRUE(session.has_value());
    RunArgs args;
    args.prompt = "p";
    args.raw = true;
    return RunStream(*session, args, options, *output_, signals_, on_reply);
  }
  OnReply WriteTokens() {
    return [this](const protocol::Body& body) {
      if (const auto* token = std::get_if<protocol::TokenChunk>(&body)) output_->Write(token->text);
      return protocol::Status();
    };
  }
  std::string ReasonOf(const protocol::Result<StreamEnd>& end) {
    if (!end) return end.error().message;
    if (!end->body) return "left";
    const auto* done = std::get_if<protocol::RunDone>(&*end->body);
    return done != nullptr ? done->finish_reason : "not a done";
  }

  UniqueFd reader_;
  UniqueFd writer_;
  std::unique_ptr<Output> output_;
  SignalWatch signals_;
};

TEST_F(StreamTest, EverythingArrivesAndIsWritten) {
  FakeDaemon daemon(Streams(100, true));
  const auto end = Run(daemon, WriteTokens());
  EXPECT_EQ(ReasonOf(end), "length");
  output_->Drain();
  char buffer[200];
  EXPECT_EQ(::read(reader_.get(), buffer, sizeof(buffer)), 100);
}

TEST_F(StreamTest, AQuarterOfTheWindowIsAcknowledgedAtOnce) {
  FakeDaemon daemon(Streams(64, false));
  StreamOptions options;
  options.window = 64;
  std::thread interrupter([&] {
    daemon.WaitUntil([&] { return !daemon.requests_of<AckArgs>().empty(); });
    ::kill(::getpid(), SIGINT);
  });
  const auto end = Run(daemon, WriteTokens(), options);
  interrupter.join();
  const auto acks = daemon.requests_of<AckArgs>();
  ASSERT_FALSE(acks.empty());
  EXPECT_GE(acks.front().seq, 16u);
  EXPECT_LE(acks.back().seq, 64u);
}

TEST_F(StreamTest, ASilentRequestIsStillAcknowledgedEverySecond) {
  FakeDaemon daemon(Streams(1, false));
  std::thread interrupter([&] {
    EXPECT_TRUE(daemon.WaitUntil([&] { return daemon.requests_of<AckArgs>().size() >= 3; }));
    ::kill(::getpid(), SIGINT);
  });
  const auto start = Clock::now();
  EXPECT_EQ(ReasonOf(Run(daemon, WriteTokens())), "cancelled");
  interrupter.join();
  EXPECT_GE(Clock::now() - start, milliseconds(2500));
  EXPECT_EQ(daemon.requests_of<AckArgs>().back().seq, 1u);
}

TEST_F(StreamTest, WhatTheReaderHasNotTakenIsNotAcknowledged) {
  // More text than a pipe holds, and nobody reads: life is signalled, progress is not.
  FakeDaemon daemon([](const protocol::Request& request, const FakeDaemon::Send& send) {
    if (std::holds_alternative<RunArgs>(request.args)) {
      send(request.id, 0, protocol::Accepted{});
      send(request.id, 1, protocol::TokenChunk{0, 1, std::string(1 << 20, 'x'), "", {}, {}});
    }
    if (const auto* cancel = std::get_if<CancelArgs>(&request.args)) {
      send(cancel->request, 2, Done("cancelled"));
    }
  });
  std::thread interrupter([&] {
    EXPECT_TRUE(daemon.WaitUntil([&] { return daemon.requests_of<AckArgs>().size() >= 2; }));
    ::kill(::getpid(), SIGINT);
  });
  Run(daemon, WriteTokens());
  interrupter.join();
  for (const AckArgs& ack : daemon.requests_of<AckArgs>()) EXPECT_EQ(ack.seq, 0u);
  EXPECT_TRUE(output_->pending());
}

TEST_F(StreamTest, ControlCCancelsAndWaitsForTheEnd) {
  FakeDaemon daemon(Streams(3, false));
  std::thread interrupter([&] {
    EXPECT_TRUE(daemon.WaitUntil([&] { return !daemon.requests_of<RunArgs>().empty(); }));
    ::kill(::getpid(), SIGINT);
  });
  const auto end = Run(daemon, WriteTokens());
  interrupter.join();
  EXPECT_EQ(ReasonOf(end), "cancelled");
  EXPECT_TRUE(end->interrupted);
  EXPECT_EQ(daemon.requests_of<CancelArgs>().size(), 1u);
}

TEST_F(StreamTest, ASecondControlCLeavesAtOnce) {
  // This daemon does not end what is cancelled.
  FakeDaemon daemon([](const protocol::Request&, const FakeDaemon::Send&) {});
  std::thread interrupter([&] {
    daemon.WaitUntil([&] { return !daemon.requests_of<RunArgs>().empty(); });
    ::kill(::getpid(), SIGINT);
    EXPECT_TRUE(daemon.WaitUntil([&] { return !daemon.requests_of<CancelArgs>().empty(); }));
    ::kill(::getpid(), SIGINT);
  });
  const auto start = Clock::now();
  const auto end = Run(daemon, WriteTokens());
  interrupter.join();
  EXPECT_EQ(ReasonOf(end), "left");
  EXPECT_TRUE(end->interrupted);
  EXPECT_LT(Clock::now() - start, milliseconds(25'000));
}

TEST_F(StreamTest, AReaderThatLeavesCancels) {
  FakeDaemon daemon(Streams(0, false));
  std::thread leaver([&] {
    daemon.WaitUntil([&] { return !daemon.requests_of<RunArgs>().empty(); });
    reader_.Reset();
  });
  const auto end = Run(daemon, WriteTokens());
  leaver.join();
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->output_closed);
  EXPECT_TRUE(daemon.WaitUntil([&] { return !daemon.requests_of<CancelArgs>().empty(); }));
}

TEST_F(StreamTest, AReaderThatLeavesWhileWordsComeCancels) {
  FakeDaemon daemon([this](const protocol::Request& request, const FakeDaemon::Send& send) {
    if (std::holds_alternative<RunArgs>(request.args)) {
      send(request.id, 0, protocol::Accepted{});
      reader_.Reset();
      send(request.id, 1, protocol::TokenChunk{0, 1, "t", "", {}, {}});
    }
  });
  const auto end = Run(daemon, WriteTokens());
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->output_closed);
}

TEST_F(StreamTest, AnErrorOfTheCallerCancelsAndIsTheResult) {
  FakeDaemon daemon(Streams(3, false));
  const auto end = Run(daemon, [](const protocol::Body& body) -> protocol::Status {
    if (std::holds_alternative<protocol::TokenChunk>(body)) {
      return protocol::Fail(protocol::ErrorCode::kIoError, "the disk is full");
    }
    return {};
  });
  ASSERT_FALSE(end.has_value());
  EXPECT_EQ(end.error().message, "the disk is full");
  EXPECT_EQ(daemon.requests_of<CancelArgs>().size(), 1u);
}

TEST_F(StreamTest, ADaemonThatDiesIsNoticed) {
  auto daemon = std::make_unique<FakeDaemon>(Streams(2, false));
  std::thread killer([&] {
    daemon->WaitUntil([&] { return !daemon->requests_of<RunArgs>().empty(); });
    daemon->Stop();
  });
  const auto end = Run(*daemon, WriteTokens());
  killer.join();
  ASSERT_FALSE(end.has_value());
  EXPECT_EQ(end.error().code, protocol::ErrorCode::kUnreachable);
}

TEST_F(StreamTest, ADeadlineHoldsAlsoWhenTheDaemonForgetsIt) {
  FakeDaemon daemon(Streams(0, false));
  StreamOptions options;
  options.timeout = milliseconds(1);
  const auto end = Run(daemon, WriteTokens(), options);
  ASSERT_FALSE(end.has_value());
  EXPECT_EQ(end.error().code, protocol::ErrorCode::kTimeout);
}

TEST_F(StreamTest, TheDaemonsErrorIsTheEnd) {
  FakeDaemon daemon([](const protocol::Request& request, const FakeDaemon::Send& send) {
    send(request.id, 0, protocol::Error{protocol::ErrorCode::kBusy, "busy", "", {}});
  });
  const auto end = Run(daemon, WriteTokens());
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(std::get<protocol::Error>(*end->body).code, protocol::ErrorCode::kBusy);
}

}  // namespace
}  // namespace mk::client
