#include "daemon/client_table.h"

#include <algorithm>
#include <utility>

namespace mk::daemon {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(200);
constexpr auto kForgetAfter = std::chrono::minutes(1);
// A client whose connection seems to have ended: so long it may take to show that it lives, which
// every client of a stream does at least once in an acknowledgement's time.
constexpr auto kShowLife = std::chrono::milliseconds(2 * protocol::kAckIntervalMs);
// What a client sent just before it ended may be received just after.
constexpr auto kLastWords = std::chrono::milliseconds(protocol::kAckIntervalMs / 4);

}  // namespace

uint64_t ClientTable::Touch(const std::string& peer, Clock::time_point now, int connection) {
  Peer& entry = peers_[peer];
  if (entry.number == 0) entry.number = next_number_++;
  if (entry.closed && now - *entry.closed > kLastWords) entry.closed.reset();
  if (connection >= 0) entry.connection = connection;
  entry.last_seen = now;
  return entry.number;
}

void ClientTable::ConnectionClosed(int connection, Clock::time_point now) {
  for (auto& [peer, entry] : peers_) {
    if (entry.connection == connection) entry.closed = now;
  }
}

void ClientTable::SetName(const std::string& peer, const std::string& name) {
  peers_[peer].name = name;
}

std::string ClientTable::NameOf(const ClientRequest& request) const {
  const auto it = peers_.find(request.peer);
  if (it != peers_.end() && !it->second.name.empty()) return it->second.name;
  return "client " + std::to_string(request.client);
}

ClientRequest* ClientTable::Open(const std::string& peer, protocol::Request request,
                                 Clock::time_point now) {
  const uint64_t number = Touch(peer, now);
  Peer& entry = peers_[peer];
  entry.last_id = std::max(entry.last_id, request.id);
  const uint64_t key = next_key_;
  if (!entry.open.emplace(request.id, key).second) return nullptr;
  ++next_key_;
  auto made = std::make_unique<ClientRequest>();
  made->key = key;
  made->peer = peer;
  made->client = number;
  made->id = request.id;
  made->op = protocol::OpOf(request);
  made->args = std::move(request.args);
  made->arrived = now;
  ClientRequest* opened = made.get();
  requests_.emplace(key, std::move(made));
  return opened;
}

ClientRequest* ClientTable::Find(uint64_t key) {
  const auto it = requests_.find(key);
  return it == requests_.end() || it->second->final ? nullptr : it->second.get();
}

ClientRequest* ClientTable::Find(const std::string& peer, uint64_t id) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return nullptr;
  const auto open = it->second.open.find(id);
  if (open == it->second.open.end()) return nullptr;
  const auto request = requests_.find(open->second);
  return request == requests_.end() ? nullptr : request->second.get();
}

size_t ClientTable::CountOpen(uint64_t client, protocol::Op op) const {
  return static_cast<size_t>(
      std::count_if(requests_.begin(), requests_.end(), [client, op](const auto& entry) {
        return entry.second->client == client && entry.second->op == op && !entry.second->final;
      }));
}

void ClientTable::Reply(const std::string& peer, uint64_t id, protocol::Body body) {
  std::string answer = protocol::EncodeReply({id, 0, std::move(body)});
  if (answers_.contains(peer)) return Keep(peer, std::move(answer));  // those before it come first
  switch (transport_.Send(peer, answer)) {
    case SendResult::kSent:
      return;
    case SendResult::kFull:
      return Keep(peer, std::move(answer));
    case SendResult::kGone:
      return Lose(peer);
  }
}

void ClientTable::Keep(const std::string& peer, std::string answer) {
  const auto it = answers_.find(peer);
  const size_t waiting = it == answers_.end() ? 0 : it->second.bytes;
  if (waiting + answer.size() > kWaitingAnswerBytes) {
    metrics_.Add(Counter::kAnswersDropped);
    return;
  }
  Waiting& queue = it == answers_.end() ? answers_[peer] : it->second;
  queue.bytes += answer.size();
  queue.messages.push_back(std::move(answer));
}

// True: none waits any more.
bool ClientTable::SendAnswers(const std::string& peer) {
  const auto it = answers_.find(peer);
  if (it == answers_.end()) return true;
  Waiting& queue = it->second;
  while (!queue.messages.empty()) {
    switch (transport_.Send(peer, queue.messages.front())) {
      case SendResult::kSent:
        queue.bytes -= queue.messages.front().size();
        queue.messages.pop_front();
        break;
      case SendResult::kFull:
        return false;
      case SendResult::kGone:
        Lose(peer);
        return true;
    }
  }
  answers_.erase(it);
  return true;
}

void ClientTable::Answer(const std::string& peer, uint64_t id, protocol::Op op,
                         protocol::Body body) {
  metrics_.CountRequest(op, OutcomeOf(body));
  Reply(peer, id, std::move(body));
}

void ClientTable::Send(ClientRequest& request, protocol::Body body, size_t cost) {
  if (request.lost || request.final) return;
  const uint64_t seq = request.outbox.next_seq();
  request.outbox.Add(protocol::EncodeReply({request.id, seq, std::move(body)}), cost);
  SendNow(request);
}

void ClientTable::Finish(ClientRequest& request, protocol::Body body) {
  if (!request.final) metrics_.CountRequest(request.op, OutcomeOf(body));
  Send(request, std::move(body));
  request.final = true;
  // Whoever waits for the session may begin as soon as this one is over.
  const auto lease = std::move(request.session_lease);
  EraseIfDone(request.key);
}

void ClientTable::SendProgress(ClientRequest& request, protocol::Progress progress,
                               Clock::time_point now) {
  if (request.outbox.has_unsent() || now - request.last_progress < kProgressInterval) return;
  request.last_progress = now;
  Send(request, std::move(progress));
}

void ClientTable::Acknowledge(ClientRequest& request, uint64_t seq) {
  request.outbox.Acknowledge(seq);
  request.control->acked_messages.store(request.outbox.acked_messages());
  request.control->acked_bytes.store(request.outbox.acked_bytes());
}

bool ClientTable::SendNow(ClientRequest& request) {
  // A stream must not take the room that answers wait for.
  if (answers_.contains(request.peer)) return false;
  while (request.outbox.has_unsent()) {
    switch (transport_.Send(request.peer, request.outbox.front())) {
      case SendResult::kSent:
        request.outbox.PopSent();
        break;
      case SendResult::kFull:
        return false;
      case SendResult::kGone:
        Lose(request.peer);
        return true;
    }
  }
  return true;
}

bool ClientTable::Flush() {
  bool waiting = false;
  std::vector<std::string> peers;
  for (const auto& [peer, queue] : answers_) peers.push_back(peer);
  for (const std::string& peer : peers) {
    if (!SendAnswers(peer)) waiting = true;
  }
  std::vector<uint64_t> keys;
  for (const auto& [key, request] : requests_) {
    if (request->outbox.has_unsent() && !request->lost) keys.push_back(key);
  }
  for (const uint64_t key : keys) {
    if (!SendNow(*requests_.at(key))) waiting = true;
    EraseIfDone(key);
  }
  return waiting;
}

void ClientTable::EraseIfDone(uint64_t key) {
  const auto it = requests_.find(key);
  if (it == requests_.end()) return;
  const ClientRequest& request = *it->second;
  if (!request.final || (request.outbox.has_unsent() && !request.lost)) return;
  if (const auto peer = peers_.find(request.peer); peer != peers_.end()) {
    // A client that was lost and came back may use the number for another request.
    const auto open = peer->second.open.find(request.id);
    if (open != peer->second.open.end() && open->second == key) peer->second.open.erase(open);
  }
  requests_.erase(it);
}

void ClientTable::Lose(const std::string& peer) {
  answers_.erase(peer);
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  bool any_new = false;
  for (const auto& [id, key] : it->second.open) {
    ClientRequest& request = *requests_.at(key);
    any_new = any_new || !request.silent;
    request.lost = true;
    lost_.push_back(key);
  }
  if (any_new) metrics_.Add(Counter::kClientsLost);
  peers_.erase(it);
}

std::vector<uint64_t> ClientTable::TakeLost() {
  auto taken = std::exchange(lost_, {});
  // Those that had nothing left to do but to send their last message are done with.
  for (const uint64_t key : taken) EraseIfDone(key);
  return taken;
}

bool ClientTable::HasStream(const Peer& peer) const {
  return std::any_of(peer.open.begin(), peer.open.end(), [this](const auto& open) {
    return protocol::InfoOf(requests_.at(open.second)->op).streams;
  });
}

void ClientTable::CheckSilence(Clock::time_point now) {
  const auto limit = std::chrono::milliseconds(protocol::kSilenceMs);
  std::vector<std::string> gone;
  for (const auto& [peer, entry] : peers_) {
    if (entry.closed && now - *entry.closed >= kShowLife && HasStream(entry)) {
      gone.push_back(peer);
      continue;
    }
    if (now - entry.last_seen < limit) continue;
    // One that cannot even take its answers or its last message does not read any more.
    const bool mute = now - entry.last_seen >= 2 * limit;
    bool reads = !mute || !answers_.contains(peer);
    bool any_new = false;
    for (const auto& [id, key] : entry.open) {
      ClientRequest& request = *requests_.at(key);
      if (request.final && mute) reads = false;
      if (request.silent || request.final || !protocol::InfoOf(request.op).streams) continue;
      request.silent = true;
      any_new = true;
      lost_.push_back(key);
    }
    if (!reads) gone.push_back(peer);
    if (any_new) metrics_.Add(Counter::kClientsLost);
  }
  for (const auto& peer : gone) Lose(peer);
}

bool ClientTable::EverOpened(const std::string& peer, uint64_t id) const {
  const auto it = peers_.find(peer);
  return it != peers_.end() && id <= it->second.last_id;
}

void ClientTable::ForgetIdle(Clock::time_point now) {
  std::erase_if(peers_, [now](const auto& entry) {
    return entry.second.open.empty() && now - entry.second.last_seen > kForgetAfter;
  });
}

}  // namespace mk::daemon
