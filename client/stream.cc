#include "client/stream.h"

#include <poll.h>

#include <algorithm>
#include <array>

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Reply;
using protocol::Result;
using protocol::Status;

// A daemon never leaves its socket unread for so long; one that does hangs.
constexpr milliseconds kDaemonSilence{20'000};
// After so long without a word it is asked for one.
constexpr milliseconds kAskAfter{2'000};
// The daemon's own deadline comes first.
constexpr milliseconds kTimeoutSlack{3'000};
// How long the end of a cancelled request is waited for.
constexpr milliseconds kCancelWait{10'000};
// Bytes received that are acknowledged before the interval is over.
constexpr size_t kAckBytes = size_t{1} << 20;

size_t PayloadBytes(const protocol::Body& body) {
  const auto* tensor = std::get_if<protocol::TensorChunk>(&body);
  return tensor != nullptr ? tensor->data.size() : 0;
}

class Stream {
 public:
  Stream(Session& session, const StreamOptions& options, Output& output, const SignalWatch& signals,
         const OnReply& on_reply)
      : session_(session),
        options_(options),
        output_(output),
        signals_(signals),
        on_reply_(on_reply),
        next_ack_(After(milliseconds(protocol::kAckIntervalMs))),
        give_up_(options.timeout.count() > 0 ? After(options.timeout + kTimeoutSlack) : kNever) {}

  Result<StreamEnd> Run(protocol::Args args) {
    Result<uint64_t> id = session_.Send(std::move(args));
    if (!id) return Fail(std::move(id.error()));
    id_ = *id;
    while (true) {
      if (Status taken = TakeReplies(); !taken) return Fail(std::move(taken.error()));
      if (end_.body || left_) return Finish();
      // Before waiting: the daemon may be waiting for the acknowledgement of what just came.
      if (Status kept = KeepAlive(); !kept) return Fail(std::move(kept.error()));
      if (left_) return Finish();
      if (Status waited = WaitForSomething(); !waited) {
        // What came before the end is still worth having.
        if (Status taken = TakeReplies(); !taken) return Fail(std::move(taken.error()));
        if (end_.body) return Finish();
        return Fail(std::move(waited.error()));
      }
    }
  }

 private:
  Result<StreamEnd> Finish() {
    if (failure_) return Fail(std::move(*failure_));
    return std::move(end_);
  }

  Status TakeReplies() {
    while (!end_.body) {
      Result<std::optional<Reply>> reply = session_.Take();
      if (!reply) return Fail(std::move(reply.error()));
      if (!*reply) break;
      if ((*reply)->id == id_) TakeReply(**reply);
    }
    output_.Pump();
    if (output_.closed()) OnReaderLeft();
    return {};
  }

  void TakeReply(Reply& reply) {
    const protocol::ReplyType type = protocol::TypeOf(reply.body);
    if (type == protocol::ReplyType::kDone || type == protocol::ReplyType::kError) {
      end_.body = std::move(reply.body);
      return;
    }
    last_seq_ = reply.seq;
    unacked_bytes_ += PayloadBytes(reply.body);
    if (failure_) return;
    if (Status handled = on_reply_(reply.body); !handled) {
      failure_ = std::move(handled.error());
      Cancel();
    }
  }

  Status WaitForSomething() {
    Connection& connection = session_.connection();
    // The output is watched for a reader that leaves even when nothing is to be written.
    const auto output_events = static_cast<short>(output_.pending() ? POLLOUT : 0);
    const int output_fd = output_.closed() ? -1 : output_.fd();
    std::array<pollfd, 3> ready = {{{connection.fd(), connection.events(), 0},
                                    {signals_.fd(), POLLIN, 0},
                                    {output_fd, output_events, 0}}};
    const int timeout = PollTimeout(std::min(next_ack_, give_up_));
    if (::poll(ready.data(), ready.size(), timeout) < 0) return {};
    if (ready[1].revents != 0) OnSignal();
    if (ready[2].revents != 0) OnOutput(ready[2].revents);
    if (ready[0].revents != 0) return connection.OnReady(ready[0].revents);
    return {};
  }

  void OnSignal() {
    const int count = signals_.Take();
    if (count == 0) return;
    left_ = left_ || end_.interrupted || count > 1;
    end_.interrupted = true;
    Cancel();
  }

  void OnOutput(short revents) {
    output_.Pump();
    if (output_.closed() || (revents & POLLERR) != 0) OnReaderLeft();
  }

  void OnReaderLeft() {
    end_.output_closed = true;
    Cancel();
    left_ = true;  // nobody reads what would still come
  }

  void Cancel() {
    if (cancelled_) return;
    cancelled_ = true;
    give_up_ = std::min(give_up_, After(kCancelWait));
    // A connection that cannot carry the cancel has ended; that is seen by the next poll.
    static_cast<void>(session_.Send(protocol::CancelArgs{id_}));
  }

  Status KeepAlive() {
    const Deadline now = Clock::now();
    if (now >= give_up_) return GiveUp();
    const Deadline heard = session_.connection().last_heard();
    if (now - heard > kDaemonSilence) {
      return Fail(ErrorCode::kUnreachable, "the daemon does not answer any more",
                  "it hangs; its log may say why; end it with SIGKILL and start it again");
    }
    if (!output_.pending()) shown_seq_ = last_seq_;
    const bool far_behind = shown_seq_ - acked_seq_ >= std::max(1u, options_.window / 4);
    const bool many_bytes = shown_seq_ > acked_seq_ && unacked_bytes_ >= kAckBytes;
    if (now < next_ack_ && !far_behind && !many_bytes) return {};
    next_ack_ = now + milliseconds(protocol::kAckIntervalMs);
    if (now - heard > kAskAfter) {
      if (auto sent = session_.Send(protocol::PingArgs{}); !sent) return Fail(sent.error());
    }
    acked_seq_ = shown_seq_;
    unacked_bytes_ = 0;
    if (auto sent = session_.Send(protocol::AckArgs{id_, acked_seq_}); !sent) {
      return Fail(sent.error());
    }
    return {};
  }

  Status GiveUp() {
    if (cancelled_) {
      left_ = true;
      return {};
    }
    return Fail(ErrorCode::kTimeout, "no answer within the time that was given",
                "give more with --timeout");
  }

  Session& session_;
  const StreamOptions& options_;
  Output& output_;
  const SignalWatch& signals_;
  const OnReply& on_reply_;
  uint64_t id_ = 0;
  StreamEnd end_;
  std::optional<protocol::Error> failure_;  // of on_reply
  bool cancelled_ = false;
  bool left_ = false;       // the end is not waited for
  uint64_t last_seq_ = 0;   // received
  uint64_t shown_seq_ = 0;  // written to the output
  uint64_t acked_seq_ = 0;
  size_t unacked_bytes_ = 0;
  Deadline next_ack_;
  Deadline give_up_;
};

}  // namespace

Result<StreamEnd> RunStream(Session& session, protocol::Args args, const StreamOptions& options,
                            Output& output, const SignalWatch& signals, const OnReply& on_reply) {
  return Stream(session, options, output, signals, on_reply).Run(std::move(args));
}

}  // namespace mk::client
