// Transport and client table over a real socket.

#include "daemon/transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "daemon/client_table.h"
#include "daemon/listener.h"
#include "temp_dir.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

class TransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Transport::Create(std::move(*Listen(path_)), path_, 1 << 20, metrics_);
    ASSERT_TRUE(made) << made.error().ToString();
    transport_ = std::move(*made);
  }
  zmq::socket_t Dealer() {
    zmq::socket_t dealer(context_, zmq::socket_type::dealer);
    dealer.set(zmq::sockopt::linger, 0);
    dealer.set(zmq::sockopt::rcvtimeo, 2000);
    dealer.set(zmq::sockopt::reconnect_ivl, -1);
    dealer.connect("ipc://" + path_);
    return dealer;
  }
  bool Receive(Incoming& incoming, std::chrono::milliseconds limit = 2000ms) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (transport_->Receive(incoming)) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  template <typename Condition>
  bool Eventually(Condition condition, std::chrono::milliseconds limit = 5000ms) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      transport_->DrainMonitor();
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }

  TempDir dir_;
  std::string path_ = dir_ / "s";
  Metrics metrics_;
  zmq::context_t context_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(TransportTest, AnswersFindTheirWay) {
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("question"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  EXPECT_EQ(incoming.payload.to_string(), "question");
  EXPECT_TRUE(incoming.single_frame);
  EXPECT_EQ(transport_->Send(incoming.peer, "answer"), SendResult::kSent);
  zmq::message_t answer;
  ASSERT_TRUE(dealer.recv(answer));
  EXPECT_EQ(answer.to_string(), "answer");
}

TEST_F(TransportTest, APeerThatLeftIsReported) {
  std::string peer;
  {
    auto dealer = Dealer();
    dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
    Incoming incoming;
    ASSERT_TRUE(Receive(incoming));
    peer = incoming.peer;
    EXPECT_TRUE(Eventually([&] { return transport_->connections() == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return transport_->connections() == 0; }));
  EXPECT_TRUE(Eventually([&] { return transport_->Send(peer, "x") == SendResult::kGone; }));
  EXPECT_EQ(transport_->Send("nobody", "x"), SendResult::kGone);
}

TEST_F(TransportTest, APeerThatDoesNotReadFillsItsPipeAndNothingBlocks) {
  auto dealer = Dealer();
  dealer.set(zmq::sockopt::rcvhwm, 1);
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const std::string large(1 << 16, 'x');
  bool full = false;
  for (int i = 0; i < 8000 && !full; ++i) {
    full = transport_->Send(incoming.peer, large) == SendResult::kFull;
  }
  EXPECT_TRUE(full);
  EXPECT_GT(metrics_.Get(Counter::kSendsDeferred), 0U);
}

// What a sender may pile up here is bounded; then its own queue fills.
TEST_F(TransportTest, ASenderWhoseMessagesAreNotTakenIsHeldBack) {
  auto dealer = Dealer();
  dealer.set(zmq::sockopt::sndtimeo, 1000);
  bool held_back = false;
  for (int i = 0; i < 8000 && !held_back; ++i) {
    held_back = !dealer.send(zmq::message_t(1 << 15), zmq::send_flags::none);
  }
  EXPECT_TRUE(held_back);
}

TEST_F(TransportTest, UnreadMessagesDoNotHoldUpTheEnd) {
  auto dealer = Dealer();
  dealer.set(zmq::sockopt::rcvhwm, 1);
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const std::string large(1 << 16, 'x');
  while (transport_->Send(incoming.peer, large) == SendResult::kSent) {
  }
  const auto begin = std::chrono::steady_clock::now();
  transport_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

TEST_F(TransportTest, AMessageOverTheLimitCostsItsSenderTheConnection) {
  auto dealer = Dealer();
  auto other = Dealer();
  dealer.send(zmq::message_t(2 << 20), zmq::send_flags::none);
  other.send(zmq::str_buffer("fine"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  EXPECT_EQ(incoming.payload.to_string(), "fine");
  EXPECT_TRUE(Eventually([&] { return transport_->connections() == 1; }));
}

TEST_F(TransportTest, ManyFramesAreOneMalformedMessage) {
  auto dealer = Dealer();
  for (int i = 0; i < 3; ++i) dealer.send(zmq::str_buffer("part"), zmq::send_flags::sndmore);
  dealer.send(zmq::str_buffer("end"), zmq::send_flags::none);
  dealer.send(zmq::str_buffer("next"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  EXPECT_FALSE(incoming.single_frame);
  ASSERT_TRUE(Receive(incoming));
  EXPECT_TRUE(incoming.single_frame);
  EXPECT_EQ(incoming.payload.to_string(), "next");
}

// A peer that connects and says nothing holds a descriptor for the handshake's time only.
TEST_F(TransportTest, ASilentPeerIsDroppedAfterTheHandshakesTime) {
  UniqueFd silent(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(connect(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(Eventually([&] { return transport_->connections() == 1; }));
  EXPECT_TRUE(Eventually([&] { return transport_->connections() == 0; }, 6000ms));
}

TEST_F(TransportTest, TwoPeersOfOneIdentityDoNotDisturbTheFirst) {
  auto first = Dealer();
  zmq::socket_t named(context_, zmq::socket_type::dealer);
  named.set(zmq::sockopt::linger, 0);
  named.set(zmq::sockopt::rcvtimeo, 2000);
  named.set(zmq::sockopt::routing_id, "same");
  named.connect("ipc://" + path_);
  named.send(zmq::str_buffer("1"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  zmq::socket_t thief(context_, zmq::socket_type::dealer);
  thief.set(zmq::sockopt::linger, 0);
  thief.set(zmq::sockopt::routing_id, "same");
  thief.connect("ipc://" + path_);
  thief.send(zmq::str_buffer("2"), zmq::send_flags::none);
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(transport_->Send("same", "for the first"), SendResult::kSent);
  zmq::message_t got;
  ASSERT_TRUE(named.recv(got));
  EXPECT_EQ(got.to_string(), "for the first");
}

TEST_F(TransportTest, ASecondListenerLeavesConnectionsAlone) {
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  unlink(path_.c_str());
  ASSERT_TRUE(transport_->AddListener(std::move(*Listen(path_)), path_));
  auto late = Dealer();
  late.send(zmq::str_buffer("y"), zmq::send_flags::none);
  Incoming second;
  ASSERT_TRUE(Receive(second));
  EXPECT_EQ(second.payload.to_string(), "y");
  EXPECT_EQ(transport_->Send(incoming.peer, "still here"), SendResult::kSent);
  zmq::message_t got;
  ASSERT_TRUE(dealer.recv(got));
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(descriptors), end(descriptors)));
}

TEST_F(TransportTest, ListenersThatNobodyCameThroughAreClosed) {
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) {
    unlink(path_.c_str());
    ASSERT_TRUE(transport_->AddListener(std::move(*Listen(path_)), path_));
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; }));  // libzmq takes its time
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  EXPECT_TRUE(Receive(incoming));
}

// Events that nobody has taken yet may hold up neither connections nor counts.
TEST_F(TransportTest, ManyConnectionsAreCountedLate) {
  constexpr uint64_t kCrowd = 3000;
  for (uint64_t i = 0; i < kCrowd; ++i) {
    const UniqueFd one(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ASSERT_EQ(connect(one.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_TRUE(Eventually([&] {
    return metrics_.Get(Counter::kConnectionsClosed) == kCrowd && transport_->connections() == 0;
  }));
}

class ClientTableTest : public TransportTest {
 protected:
  protocol::Request Run(uint64_t id) {
    protocol::Request request;
    request.id = id;
    request.args = protocol::RunArgs{};
    return request;
  }
};

TEST_F(ClientTableTest, RepliesAreNumberedAndTheLastOneClosesTheRequest) {
  ClientTable table(*transport_, metrics_);
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  ClientRequest* request = table.Open(incoming.peer, Run(5), Clock::now());
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(table.Open(incoming.peer, Run(5), Clock::now()), nullptr);  // id in use
  const uint64_t key = request->key;
  table.Send(*request, protocol::Accepted{3});
  table.Send(*request, protocol::TokenChunk{0, 7, "a", "", {}, {}}, 10);
  EXPECT_EQ(request->control->acked_messages.load(), 0U);
  table.Acknowledge(*request, 1);
  EXPECT_EQ(request->control->acked_messages.load(), 1U);
  table.Finish(*request, protocol::Error{protocol::ErrorCode::kTimeout, "late", {}, {}});
  EXPECT_EQ(table.Find(key), nullptr);
  EXPECT_TRUE(table.requests().empty());
  for (uint64_t seq = 0; seq < 3; ++seq) {
    zmq::message_t message;
    ASSERT_TRUE(dealer.recv(message));
    auto reply = protocol::DecodeReply(message.to_string_view(), protocol::Op::kRun);
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(reply->id, 5U);
    EXPECT_EQ(reply->seq, seq);
  }
  EXPECT_NE(table.Open(incoming.peer, Run(5), Clock::now()), nullptr);  // free again
}

TEST_F(ClientTableTest, ASilentClientLosesItsStreams) {
  ClientTable table(*transport_, metrics_);
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const auto now = Clock::now();
  ClientRequest* request = table.Open(incoming.peer, Run(1), now);
  const uint64_t key = request->key;
  table.CheckSilence(now + 4s);
  EXPECT_TRUE(table.TakeLost().empty());
  table.Touch(incoming.peer, now + 4s);
  table.CheckSilence(now + 8s);
  EXPECT_TRUE(table.TakeLost().empty());
  table.CheckSilence(now + 10s);
  EXPECT_EQ(table.TakeLost(), std::vector<uint64_t>{key});
  table.CheckSilence(now + 11s);
  EXPECT_TRUE(table.TakeLost().empty());  // reported once
  // Should it come back, it learns how its request ended.
  table.Finish(*table.Find(key), protocol::Error{});
  EXPECT_TRUE(table.requests().empty());
  zmq::message_t message;
  EXPECT_TRUE(dealer.recv(message));
}

TEST_F(ClientTableTest, AClientWhoseConnectionEndedIsLostSoon) {
  ClientTable table(*transport_, metrics_);
  const auto now = Clock::now();
  const auto receive = [&](const char* text, Incoming& incoming) {
    auto dealer = Dealer();
    dealer.send(zmq::buffer(std::string_view(text)), zmq::send_flags::none);
    return Receive(incoming);
  };
  Incoming gone;
  ASSERT_TRUE(receive("x", gone));  // and its connection ends
  ASSERT_GE(gone.connection, 0);
  table.Touch(gone.peer, now, gone.connection);
  const uint64_t key = table.Open(gone.peer, Run(1), now)->key;
  std::vector<int> closed;
  ASSERT_TRUE(Eventually([&] {
    closed = transport_->TakeClosed();
    return !closed.empty();
  }));
  EXPECT_EQ(closed, std::vector<int>{gone.connection});
  table.ConnectionClosed(closed[0], now);
  // What it had sent before is no sign of life.
  table.Touch(gone.peer, now + 10ms, gone.connection);
  table.CheckSilence(now + 1s);
  EXPECT_TRUE(table.TakeLost().empty());
  table.CheckSilence(now + 2s);
  EXPECT_EQ(table.TakeLost(), std::vector<uint64_t>{key});
  EXPECT_TRUE(table.Find(key)->lost);
  table.Finish(*table.Find(key), protocol::Error{});
}

TEST_F(ClientTableTest, AClientThatGotTheNumberOfAnEndedConnectionLivesOn) {
  ClientTable table(*transport_, metrics_);
  const auto now = Clock::now();
  table.Touch("other", now, 11);
  const uint64_t waits = table.Open("other", Run(1), now)->key;
  table.Touch("peer", now, 12);
  const uint64_t speaks = table.Open("peer", Run(1), now)->key;
  table.ConnectionClosed(12, now);  // the one that had the number before
  table.Touch("peer", now + 1s, 12);
  table.CheckSilence(now + 3s);
  EXPECT_TRUE(table.TakeLost().empty());
  for (const uint64_t key : {waits, speaks}) table.Finish(*table.Find(key), protocol::Error{});
  table.TakeLost();
}

// One that takes nothing for so long is not waited for, and has to be told should it come back.
TEST_F(ClientTableTest, AClientThatDoesNotTakeItsLastMessagesIsForgotten) {
  ClientTable table(*transport_, metrics_);
  auto dealer = Dealer();
  dealer.set(zmq::sockopt::rcvhwm, 1);
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const auto now = Clock::now();
  ClientRequest* request = table.Open(incoming.peer, Run(7), now);
  protocol::TokenChunk chunk;
  chunk.text = std::string(1 << 16, 'x');
  while (!request->outbox.has_unsent()) table.Send(*request, chunk, 1);
  const uint64_t sent = request->outbox.next_seq();
  table.SendProgress(*request, {"prefill", 1, 2, "tokens"}, now + 1s);
  EXPECT_EQ(request->outbox.next_seq(), sent);  // it has enough to read
  table.CheckSilence(now + 6s);
  ASSERT_EQ(table.TakeLost().size(), 1U);
  table.Finish(*request, protocol::Error{});
  table.CheckSilence(now + 9s);
  table.TakeLost();
  EXPECT_EQ(table.requests().size(), 1U);  // it may still wake up and read
  EXPECT_TRUE(table.EverOpened(incoming.peer, 7));
  table.CheckSilence(now + 11s);
  table.TakeLost();
  EXPECT_TRUE(table.requests().empty());
  EXPECT_FALSE(table.EverOpened(incoming.peer, 7));
}

TEST_F(ClientTableTest, ARequestThatEndedIsStillKnownToHaveBeen) {
  ClientTable table(*transport_, metrics_);
  ClientRequest* request = table.Open("peer", Run(3), Clock::now());
  EXPECT_TRUE(table.EverOpened("peer", 3));
  EXPECT_FALSE(table.EverOpened("peer", 4));
  EXPECT_FALSE(table.EverOpened("stranger", 3));
  table.ForgetIdle(Clock::now() + 2min);
  EXPECT_TRUE(table.EverOpened("peer", 3));  // not while a request is open
  table.Finish(*request, protocol::Error{});
  table.TakeLost();  // the peer is no connection
}

TEST_F(ClientTableTest, AnIdleClientIsForgottenAfterAWhile) {
  ClientTable table(*transport_, metrics_);
  auto dealer = Dealer();
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const auto now = Clock::now();
  table.Finish(*table.Open(incoming.peer, Run(3), now), protocol::Error{});
  table.ForgetIdle(now + 30s);
  EXPECT_TRUE(table.EverOpened(incoming.peer, 3));
  table.ForgetIdle(now + 2min);
  EXPECT_FALSE(table.EverOpened(incoming.peer, 3));
}

TEST_F(ClientTableTest, OneThatComesBackAndReusesANumberKeepsItsNewRequest) {
  ClientTable table(*transport_, metrics_);
  std::string peer = "gone";
  ClientRequest* old = table.Open(peer, Run(1), Clock::now());
  const uint64_t key = old->key;
  table.Send(*old, protocol::Accepted{});  // finds nobody
  EXPECT_EQ(table.TakeLost(), std::vector<uint64_t>{key});
  ClientRequest* fresh = table.Open(peer, Run(1), Clock::now());
  ASSERT_NE(fresh, nullptr);
  table.Finish(*table.Find(key), protocol::Error{});
  EXPECT_EQ(table.Find(peer, 1), fresh);
}

TEST_F(ClientTableTest, AClientThatLeftIsLostWithTheNextSend) {
  ClientTable table(*transport_, metrics_);
  std::string peer;
  {
    auto dealer = Dealer();
    dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
    Incoming incoming;
    ASSERT_TRUE(Receive(incoming));
    peer = incoming.peer;
  }
  ClientRequest* request = table.Open(peer, Run(1), Clock::now());
  const uint64_t key = request->key;
  ASSERT_TRUE(Eventually([&] {
    if (!request->lost) table.Send(*request, protocol::TokenChunk{}, 1);
    return request->lost;
  }));
  EXPECT_EQ(table.TakeLost(), std::vector<uint64_t>{key});
  EXPECT_EQ(metrics_.Get(Counter::kClientsLost), 1U);
}

// A client whose pipe a stream fills, as one sees it from the daemon.
class FullPipeTest : public ClientTableTest {
 protected:
  void SetUp() override {
    ClientTableTest::SetUp();
    dealer_ = Dealer();
    dealer_.set(zmq::sockopt::rcvhwm, 1);
    dealer_.set(zmq::sockopt::rcvtimeo, 20'000);
    dealer_.send(zmq::str_buffer("x"), zmq::send_flags::none);
    Incoming incoming;
    ASSERT_TRUE(Receive(incoming));
    peer_ = incoming.peer;
    table_ = std::make_unique<ClientTable>(*transport_, metrics_);
    table_->Touch(peer_, now_, incoming.connection);
    request_ = table_->Open(peer_, Run(1), now_);
    protocol::TokenChunk chunk;
    chunk.text = std::string(1 << 10, 'x');
    while (!request_->outbox.has_unsent()) table_->Send(*request_, chunk, 1);
  }
  void Ping(uint64_t id) {
    table_->Answer(peer_, id, protocol::Op::kPing, protocol::PingDone{id, 0});
  }
  // The next message but for those of the stream; the table sends on meanwhile.
  uint64_t NextAnswer(uint64_t& of_the_stream) {
    while (true) {
      table_->Flush();
      zmq::message_t message;
      if (!dealer_.recv(message, zmq::recv_flags::dontwait)) {
        if (Clock::now() > now_ + 60s) return 0;
        std::this_thread::sleep_for(1ms);
        continue;
      }
      auto reply = protocol::DecodeReply(message.to_string_view(), [](uint64_t id) {
        return std::optional(id == 1 ? protocol::Op::kRun : protocol::Op::kPing);
      });
      if (!reply) return 0;
      if (reply->id != 1) return reply->id;
      ++of_the_stream;
    }
  }

  std::unique_ptr<ClientTable> table_;
  zmq::socket_t dealer_;
  std::string peer_;
  ClientRequest* request_ = nullptr;
  const Clock::time_point now_ = Clock::now();
};

TEST_F(FullPipeTest, AnAnswerWaitsForAPipeThatAStreamFilled) {
  for (uint64_t id = 2; id < 8; ++id) Ping(id);
  EXPECT_TRUE(table_->AnswersWait());
  EXPECT_TRUE(table_->Flush());
  // What the stream has beyond the pipe comes after the answers.
  const uint64_t in_pipe = request_->outbox.next_seq() - 1;
  for (int more = 0; more < 4; ++more) table_->Send(*request_, protocol::TokenChunk{}, 1);
  uint64_t streamed = 0;
  for (uint64_t id = 2; id < 8; ++id) EXPECT_EQ(NextAnswer(streamed), id);
  EXPECT_EQ(streamed, in_pipe);
  EXPECT_FALSE(table_->AnswersWait());
  EXPECT_EQ(metrics_.Get(Counter::kAnswersDropped), 0U);
  Ping(9);  // at once again, once the stream has sent the rest
  EXPECT_EQ(NextAnswer(streamed), 9U);
  EXPECT_TRUE(Eventually([&] { return !table_->Flush(); }, 60s));
}

TEST_F(FullPipeTest, NothingOvertakesAnAnswerThatWaits) {
  Ping(2);
  // There is room again before the table has tried.
  zmq::message_t message;
  for (uint64_t read = 0; read < request_->outbox.next_seq() - 1; ++read) {
    ASSERT_TRUE(dealer_.recv(message));
  }
  table_->Send(*request_, protocol::TokenChunk{}, 1);
  Ping(3);
  uint64_t streamed = 0;
  EXPECT_EQ(NextAnswer(streamed), 2U);
  EXPECT_EQ(NextAnswer(streamed), 3U);
  EXPECT_EQ(streamed, 0U);
}

TEST_F(FullPipeTest, OfAnswersThatNobodyReadsMegabytesAreKept) {
  const std::string text(1 << 18, 'm');
  const auto answer = [&](uint64_t id) {
    table_->Answer(peer_, id, protocol::Op::kPing,
                   protocol::Error{protocol::ErrorCode::kInternal, text, {}, {}});
  };
  for (uint64_t id = 2; id < 102; ++id) answer(id);
  // Fifteen of a quarter of a mebibyte and a little fit into four.
  EXPECT_EQ(metrics_.Get(Counter::kAnswersDropped), 85U);
  uint64_t streamed = 0;
  for (uint64_t id = 2; id < 17; ++id) EXPECT_EQ(NextAnswer(streamed), id);
  EXPECT_FALSE(table_->AnswersWait());
  Ping(200);  // what was sent counts no more
  EXPECT_EQ(NextAnswer(streamed), 200U);
}

TEST_F(FullPipeTest, AnswersOfOneThatLeftAreForgotten) {
  Ping(2);
  dealer_.close();
  EXPECT_TRUE(Eventually(
      [&] {
        Incoming incoming;
        transport_->Receive(incoming);  // libzmq notices its end there
        table_->Flush();
        return !table_->AnswersWait();
      },
      60s));
  EXPECT_TRUE(request_->lost);
  EXPECT_EQ(table_->TakeLost().size(), 1U);
}

TEST_F(FullPipeTest, OneThatTakesNoAnswersForSoLongIsForgotten) {
  table_->Finish(*request_, protocol::Error{});
  Ping(2);
  table_->CheckSilence(now_ + 9s);
  EXPECT_TRUE(table_->AnswersWait());
  table_->CheckSilence(now_ + 11s);
  EXPECT_FALSE(table_->AnswersWait());
  table_->TakeLost();
  EXPECT_TRUE(table_->requests().empty());
}

TEST_F(ClientTableTest, AnIdleClientThatTakesNoAnswersIsForgottenToo) {
  ClientTable table(*transport_, metrics_);
  auto dealer = Dealer();
  dealer.set(zmq::sockopt::rcvhwm, 1);
  dealer.send(zmq::str_buffer("x"), zmq::send_flags::none);
  Incoming incoming;
  ASSERT_TRUE(Receive(incoming));
  const auto now = Clock::now();
  table.Touch(incoming.peer, now);
  const std::string text(1 << 10, 'm');
  while (!table.AnswersWait()) {
    table.Reply(incoming.peer, 1, protocol::Error{protocol::ErrorCode::kInternal, text, {}, {}});
  }
  table.CheckSilence(now + 9s);
  EXPECT_TRUE(table.AnswersWait());
  table.CheckSilence(now + 11s);
  EXPECT_FALSE(table.AnswersWait());
}

}  // namespace
}  // namespace mk::daemon
