// The clients, their open requests, and every message to them.
//
// A client is a connection, known by the routing id that libzmq gave it. One that is gone (a send
// finds nobody, or its connection was seen to end) or that falls silent while a request of its
// streams is lost: its requests are reported by TakeLost(). What is still sent goes nowhere for one
// that is gone; one that was merely silent is told how its requests ended, should it come back.
//
// Belongs to the I/O thread.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/metrics.h"
#include "daemon/outbox.h"
#include "daemon/run_state.h"
#include "daemon/step_task.h"
#include "daemon/transport.h"
#include "protocol/messages.h"

namespace mk::daemon {

class SessionLease;
class SessionRun;

enum class RequestPhase {
  kLoading,    // waits for its model
  kPreparing,  // its text is being encoded
  kScheduled,  // with the scheduler
  kWorking,    // on a thread for other work, or waiting for it
};

// Ops that the scheduler works on in steps, beside one another.
inline bool RunsInSteps(protocol::Op op) {
  return op == protocol::Op::kRun || op == protocol::Op::kScore;
}

struct ClientRequest {
  uint64_t key = 0;  // ours, unique
  std::string peer;
  uint64_t client = 0;  // number of the connection
  uint64_t id = 0;      // the client's
  protocol::Op op = protocol::Op::kPing;
  protocol::Args args;
  RequestPhase phase = RequestPhase::kWorking;
  std::shared_ptr<RequestControl> control = std::make_shared<RequestControl>();
  std::string model_path;
  Precision precision = Precision::kExact;  // of a run or a load; settled when it arrives
  Clock::time_point arrived;
  Clock::time_point prepared;  // when the model was there and the prompt encoded
  std::optional<Clock::time_point> deadline;
  double load_ms = 0;      // time spent waiting for the model
  bool started = false;    // the scheduler works on it
  bool was_loaded = true;  // model and precision were there when the request came
  bool load_retried = false;
  uint64_t told_position = 0;  // queue position that the client knows
  Clock::time_point last_progress;
  // Of a run: from where it starts, and what happens to the state that it leaves; none: it leaves
  // none. Both are to be set before its model is there.
  RunStart start;
  KeepState keep_state;
  // Of a run in a session: what it found there, and its place in the queue for it.
  std::shared_ptr<SessionRun> session;
  std::shared_ptr<SessionLease> session_lease;
  // Why the daemon ends the request, if it does: told instead of "cancelled".
  std::optional<protocol::Error> verdict;
  Outbox outbox;
  bool final = false;   // its last message is in the outbox
  bool silent = false;  // its client was not heard of for too long
  bool lost = false;    // its client is gone
};

// What may wait of one client's answers to control ops. A client that leaves so much unread does
// not read.
inline constexpr size_t kWaitingAnswerBytes = size_t{4} << 20;

class ClientTable {
 public:
  ClientTable(Transport& transport, Metrics& metrics) : transport_(transport), metrics_(metrics) {}

  // Notes a sign of life and returns the client's number. `connection`: see Incoming.
  uint64_t Touch(const std::string& peer, Clock::time_point now, int connection = -1);
  // A connection of this descriptor ended. Its client is lost, unless it speaks again: the number
  // may belong to another connection by now. (Only one with a stream has to speak.)
  void ConnectionClosed(int connection, Clock::time_point now);
  void SetName(const std::string& peer, const std::string& name);
  std::string NameOf(const ClientRequest& request) const;

  // Null when the client has an open request of this id.
  ClientRequest* Open(const std::string& peer, protocol::Request request, Clock::time_point now);
  ClientRequest* Find(uint64_t key);
  ClientRequest* Find(const std::string& peer, uint64_t id);
  const std::map<uint64_t, std::unique_ptr<ClientRequest>>& requests() const { return requests_; }
  // Open requests of one client, by op.
  size_t CountOpen(uint64_t client, protocol::Op op) const;

  // A single reply to something that is no request. While the client's pipe is full it waits, in
  // order, and goes before anything of the client's streams; of a client that lets more than
  // kWaitingAnswerBytes pile up, what comes on top is dropped.
  void Reply(const std::string& peer, uint64_t id, protocol::Body body);
  // The answer to a request that never was open: a control op, or one that cannot be opened.
  void Answer(const std::string& peer, uint64_t id, protocol::Op op, protocol::Body body);
  // `cost`: see Outbox::Add.
  void Send(ClientRequest& request, protocol::Body body, size_t cost = 0);
  // Sends the last message. The request is gone once the message is.
  void Finish(ClientRequest& request, protocol::Body body);
  void Acknowledge(ClientRequest& request, uint64_t seq);
  // A progress message, unless one was sent just now or the client does not keep up.
  void SendProgress(ClientRequest& request, protocol::Progress progress, Clock::time_point now);

  // Tries again what the transport could not take. True when something still waits.
  bool Flush();
  // Whether answers that belong to no open request still wait for their clients' pipes.
  bool AnswersWait() const { return !answers_.empty(); }
  // Takes clients that have been silent for too long for lost.
  void CheckSilence(Clock::time_point now);
  // Whether a request of this id was opened, going by ids that go upwards. A client that did not
  // even take its last messages was dropped with all that was known of it; should it come back and
  // ask about a request, the answer is no, and it has to be told.
  bool EverOpened(const std::string& peer, uint64_t id) const;
  // Keys of requests whose client was lost since the last call.
  std::vector<uint64_t> TakeLost();
  // Forgets clients without requests that have not been heard of for a while.
  void ForgetIdle(Clock::time_point now);

 private:
  struct Peer {
    uint64_t number = 0;
    std::string name;
    Clock::time_point last_seen;
    int connection = -1;
    std::optional<Clock::time_point> closed;  // a connection of this number was seen to end
    std::map<uint64_t, uint64_t> open;        // id to key
    uint64_t last_id = 0;                     // highest of all that were opened
  };
  // Answers that found their client's pipe full, oldest first; never empty.
  struct Waiting {
    std::deque<std::string> messages;
    size_t bytes = 0;
  };
  // False: the transport is full, try later.
  bool SendNow(ClientRequest& request);
  bool SendAnswers(const std::string& peer);
  void Keep(const std::string& peer, std::string answer);
  bool HasStream(const Peer& peer) const;
  void Lose(const std::string& peer);
  void EraseIfDone(uint64_t key);

  Transport& transport_;
  Metrics& metrics_;
  uint64_t next_key_ = 1;
  uint64_t next_number_ = 1;
  std::unordered_map<std::string, Peer> peers_;
  std::map<uint64_t, std::unique_ptr<ClientRequest>> requests_;
  std::unordered_map<std::string, Waiting> answers_;  // of peers that have some
  std::vector<uint64_t> lost_;
};

}  // namespace mk::daemon
