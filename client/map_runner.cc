#include "client/map_runner.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Status;

// A daemon never leaves its socket unread for so long; one that does hangs.
constexpr milliseconds kDaemonSilence{20'000};
// After so long without a word it is asked for one.
constexpr milliseconds kAskAfter{2'000};
// How long the ends of cancelled runs are waited for.
constexpr milliseconds kCancelWait{10'000};
// Daemons that leave before the last is an error. A script may restart them again and again.
constexpr int kMostMoves = 20;
// A busy daemon is asked again after so long, or when one of our runs has ended.
constexpr milliseconds kBusyWait{200};
// Answers that may wait for an earlier one.
constexpr uint64_t kMostAhead = 4096;
constexpr size_t kMostHeldBytes = size_t{64} << 20;
// Unwritten output that keeps new items from being started.
constexpr size_t kMostUnwritten = size_t{1} << 20;

// Errors that every other item would end with as well.
bool ConcernsAll(const MapItem& item, ErrorCode code) {
  switch (code) {
    case ErrorCode::kShuttingDown:
    case ErrorCode::kUnreachable:
    case ErrorCode::kUnsupportedVersion:
      return true;
    case ErrorCode::kModelNotFound:
    case ErrorCode::kModelCorrupt:
    case ErrorCode::kNotFound:
    case ErrorCode::kPermissionDenied:
    case ErrorCode::kIncompatible:
      return !item.own_model;
    default:
      return false;
  }
}

protocol::Error Cancelled() {
  return {ErrorCode::kCancelled, "cancelled", {}, {}};
}

}  // namespace

MapRunner::MapRunner(const MapFlow& flow, size_t jobs, MapWork& work, RecordReader& reader,
                     uint64_t input_bytes, Session session, Output& output,
                     const SignalWatch& signals)
    : flow_(flow),
      jobs_(jobs),
      work_(work),
      cap_(jobs),
      reader_(reader),
      input_bytes_(input_bytes),
      session_(std::move(session)),
      output_(output),
      signals_(signals),
      writer_(flow.by_place, output),
      next_ack_(After(milliseconds(protocol::kAckIntervalMs))) {}

MapEnd MapRunner::Run(MapProgress& progress) {
  while (!Finished()) {
    Status step = Step(progress);
    if (step) continue;
    if (MayMove() && CameTooLate(step.error())) {
      moving_ = true;
      TakeAllBack();
      continue;
    }
    end_.fatal = std::move(step.error());
    break;
  }
  // The daemon sees them end with the connection, too; this is sooner.
  for (const auto& [id, running] : running_) {
    static_cast<void>(session_->Send(protocol::CancelArgs{id}));
  }
  progress.Clear();
  return std::move(end_);
}

Status MapRunner::Step(MapProgress& progress) {
  if (Status taken = TakeReplies(); !taken) return taken;
  if (moving_ && running_.empty() && !stopped_) {
    if (Status moved = Move(); !moved) return moved;
  }
  if (Status started = StartItems(); !started) return started;
  writer_.Flush([&] { progress.Clear(); });
  output_.Pump();
  if (output_.closed()) end_.output_closed = left_ = true;
  if (Finished()) return {};
  if (Status kept = KeepAlive(); !kept) return kept;
  if (input_bytes_ > 0) {
    end_.counts.input_part =
        static_cast<double>(reader_.consumed()) / static_cast<double>(input_bytes_);
  }
  progress.Show(end_.counts);
  Status waited = Wait();
  if (waited) return {};
  // What came before the end is still worth having.
  if (Status taken = TakeReplies(); !taken) return taken;
  writer_.Flush([&] { progress.Clear(); });
  return waited;
}

bool MapRunner::Finished() const {
  if (left_) return true;
  return running_.empty() && refused_.empty() && (stopped_ || end_.counts.all_read);
}

bool MapRunner::WantsInput() const {
  return !stopped_ && !end_.counts.all_read && refused_.empty() && running_.size() < cap_ &&
         end_.counts.read - writer_.next() < kMostAhead && writer_.held_bytes() < kMostHeldBytes &&
         output_.pending_bytes() < kMostUnwritten;
}

Status MapRunner::StartItems() {
  if (moving_) return {};
  while (!stopped_ && !refused_.empty() && running_.size() < cap_ && Clock::now() >= retry_at_) {
    if (Status started = StartItem(std::move(refused_.extract(refused_.begin()).mapped()));
        !started) {
      return started;
    }
  }
  Record record;
  bool filled = false;  // one read per turn: signals and replies have theirs
  while (WantsInput()) {
    if (reader_.Next(record)) {
      if (work_.IsBlank(record)) continue;
      MapItem item = work_.Read(end_.counts.read++, std::move(record));
      if (Status started = StartItem(std::move(item)); !started) return started;
      // So that lines without a run do not pile up.
      writer_.Flush([] {});
    } else if (reader_.ended()) {
      end_.counts.all_read = true;
    } else if (input_ready_ && !filled) {
      input_ready_ = false;
      filled = true;
      if (Status read = reader_.Fill(); !read) return read;
    } else {
      break;
    }
  }
  return {};
}

Status MapRunner::StartItem(MapItem item) {
  if (item.error) {
    const protocol::Error error = *item.error;
    End(item, error);
    return {};
  }
  auto id = session_->Send(item.args);
  if (id) {
    running_.emplace(*id, Running{std::move(item)});
    return {};
  }
  if (id.error().code == ErrorCode::kUnreachable) return Fail(std::move(id.error()));
  End(item, id.error());
  return {};
}

Status MapRunner::TakeReplies() {
  while (true) {
    auto reply = session_->Take();
    if (!reply) return Fail(std::move(reply.error()));
    if (!*reply) return {};
    if (Status taken = TakeReply(**reply); !taken) return taken;
  }
}

Status MapRunner::TakeReply(const protocol::Reply& reply) {
  const auto found = running_.find(reply.id);
  if (found == running_.end()) return {};  // of a ping or a cancel
  const protocol::ReplyType type = protocol::TypeOf(reply.body);
  if (type != protocol::ReplyType::kDone && type != protocol::ReplyType::kError) {
    found->second.heard = true;
    found->second.seen_seq = reply.seq;
    end_.counts.tokens += work_.Take(found->second.item, reply.body);
    return {};
  }
  Running running = std::move(running_.extract(found).mapped());
  return TakeEnd(std::move(running), reply.body);
}

Status MapRunner::TakeEnd(Running running, const protocol::Body& outcome) {
  const auto* error = std::get_if<protocol::Error>(&outcome);
  if (error != nullptr && error->code == ErrorCode::kBusy && !stopped_) {
    // Others fill the daemon. The item waits for its turn, and fewer run at once for a while.
    cap_ = std::max<size_t>(1, running_.size());
    retry_at_ = After(kBusyWait);
    TakeBack(std::move(running));
    return {};
  }
  if (error != nullptr && error->code == ErrorCode::kShuttingDown && MayMove()) {
    moving_ = true;
    TakeBack(std::move(running));
    return {};
  }
  if (error != nullptr && !stopped_ && ConcernsAll(running.item, error->code)) return Fail(*error);
  cap_ = std::min(jobs_, cap_ + 1);
  retry_at_ = {};
  End(running.item, outcome);
  return {};
}

// Whether the daemon that comes after this one may do what this one did not. Of such items nothing
// has been shown.
bool MapRunner::MayMove() const {
  return !stopped_ && flow_.access.autostart && moves_ < kMostMoves;
}

// The daemon has left as it said, or before it had heard of what it was to do. One that dies with
// an item is not to be given it again.
bool MapRunner::CameTooLate(const protocol::Error& error) const {
  if (error.code != ErrorCode::kUnreachable) return false;
  if (moving_) return true;
  return error.message == kClosedByDaemon &&
         std::none_of(running_.begin(), running_.end(),
                      [](const auto& entry) { return entry.second.heard; });
}

// The item waits for its turn.
void MapRunner::TakeBack(Running running) {
  work_.Forget(running.item);
  const uint64_t index = running.item.index;
  refused_.emplace(index, std::move(running.item));
}

void MapRunner::TakeAllBack() {
  for (auto& [id, running] : running_) TakeBack(std::move(running));
  running_.clear();
}

// Goes on with the next daemon, when the old one has left.
Status MapRunner::Move() {
  moving_ = false;
  ++moves_;
  if (!WaitUntilItLeft(*session_)) {
    return Fail(ErrorCode::kShuttingDown, "the daemon is shutting down, and does not leave",
                "`mk status` tells what it waits for");
  }
  auto session = OpenSession(flow_.access);
  if (!session) return Fail(std::move(session.error()));
  session_.emplace(std::move(*session));
  retry_at_ = {};
  return {};
}

void MapRunner::End(const MapItem& item, const protocol::Body& outcome) {
  MapAnswer answer = work_.Render(item, outcome);
  const bool failed = std::holds_alternative<protocol::Error>(outcome);
  if (stopped_ && IsCancelled(outcome)) {
    ++end_.counts.cancelled;
  } else if (failed) {
    ++end_.counts.failed;
  } else {
    ++end_.counts.done;
    if (answer.degraded) ++end_.counts.degraded;
  }
  end_.counts.tokens += answer.tokens;
  writer_.Put(item.index, std::move(answer));
  if (failed && flow_.fail_fast) Stop();
  if (failed && flow_.alone && !stopped_) end_.fatal = std::get<protocol::Error>(outcome);
}

// Nothing new is started, and what runs is cancelled.
void MapRunner::Stop() {
  if (stopped_) return;
  stopped_ = true;
  give_up_ = After(kCancelWait);
  for (const auto& [id, running] : running_) {
    // A connection that cannot carry the cancel has ended; that is seen by the next poll.
    static_cast<void>(session_->Send(protocol::CancelArgs{id}));
  }
  for (const auto& [index, item] : std::exchange(refused_, {})) End(item, Cancelled());
}

Status MapRunner::Ack(uint64_t id, Running& running) {
  running.acked_seq = running.seen_seq;
  auto sent = session_->Send(protocol::AckArgs{id, running.acked_seq});
  return sent ? Status() : Fail(std::move(sent.error()));
}

Status MapRunner::KeepAlive() {
  const Deadline now = Clock::now();
  if (now >= give_up_) left_ = true;
  const Deadline heard = session_->connection().last_heard();
  if (!running_.empty() && now - heard > kDaemonSilence) {
    return Fail(ErrorCode::kUnreachable, "the daemon does not answer any more",
                "it hangs; its log may say why; end it with SIGKILL and start it again");
  }
  const bool due = now >= next_ack_;
  if (due) next_ack_ = now + milliseconds(protocol::kAckIntervalMs);
  if (due && now - heard > kAskAfter) {
    if (auto sent = session_->Send(protocol::PingArgs{}); !sent) return Fail(sent.error());
  }
  for (auto& [id, running] : running_) {
    const bool far_behind = running.seen_seq - running.acked_seq >= flow_.window / 4;
    if (!due && !far_behind) continue;
    if (Status acked = Ack(id, running); !acked) return acked;
  }
  return {};
}

Status MapRunner::Wait() {
  Connection& connection = session_->connection();
  // The output is watched for a reader that leaves even when nothing is to be written.
  const auto output_events = static_cast<short>(output_.pending() ? POLLOUT : 0);
  const int input_fd = WantsInput() && !input_ready_ ? reader_.fd() : -1;
  std::array<pollfd, 4> ready = {{{connection.fd(), connection.events(), 0},
                                  {signals_.fd(), POLLIN, 0},
                                  {output_.fd(), output_events, 0},
                                  {input_fd, POLLIN, 0}}};
  Deadline until = std::min(next_ack_, give_up_);
  if (!refused_.empty()) until = std::min(until, std::max(retry_at_, Clock::now()));
  if (WantsInput() && input_ready_) until = Clock::now();
  if (::poll(ready.data(), ready.size(), PollTimeout(until)) < 0) return {};
  if (ready[1].revents != 0) OnSignal();
  if ((ready[2].revents & (POLLERR | POLLNVAL)) != 0) end_.output_closed = left_ = true;
  if (ready[3].revents != 0) input_ready_ = true;
  if (ready[0].revents != 0) return connection.OnReady(ready[0].revents);
  return {};
}

void MapRunner::OnSignal() {
  const int count = signals_.Take();
  if (count == 0) return;
  left_ = left_ || end_.interrupted || count > 1;
  end_.interrupted = true;
  Stop();
}

}  // namespace mk::client
