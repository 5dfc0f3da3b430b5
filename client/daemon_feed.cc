#include "client/daemon_feed.h"

#include <utility>

#include "client/access.h"

namespace mk::client {
namespace {

// Before a daemon that answers nothing is said to hang.
constexpr milliseconds kSlow{3'000};

}  // namespace

void DaemonFeed::Ask() {
  if (waiting_) return;
  if (!session_) {
    auto connected = ConnectSession(paths_);
    if (!connected) return Fail(std::move(connected.error().error));
    session_.emplace(std::move(*connected));
  }
  status_.reset();
  metrics_.reset();
  asked_ = Clock::now();
  waiting_ = true;
  auto sent = session_->Send(protocol::StatusArgs{});
  if (sent) sent = session_->Send(protocol::MetricsArgs{"families"});
  if (!sent) Fail(std::move(sent.error()));
}

void DaemonFeed::Fail(protocol::Error error) {
  session_.reset();
  waiting_ = false;
  trouble_ = std::move(error);
}

protocol::Status DaemonFeed::Receive() {
  while (true) {
    auto reply = session_->Take();
    if (!reply) return protocol::Fail(std::move(reply.error()));
    if (!*reply) return {};
    protocol::Body& body = (*reply)->body;
    if (auto* error = std::get_if<protocol::Error>(&body)) return protocol::Fail(std::move(*error));
    if (auto* status = std::get_if<protocol::StatusDone>(&body)) status_ = std::move(*status);
    if (auto* metrics = std::get_if<protocol::MetricsDone>(&body)) metrics_ = std::move(*metrics);
  }
}

void DaemonFeed::OnReady(short revents) {
  if (!session_ || revents == 0) return;
  const protocol::Status open = session_->connection().OnReady(revents);
  // What came before the end counts.
  protocol::Status received = Receive();
  if (!received) return Fail(std::move(received.error()));
  if (!open && !(status_ && metrics_)) return Fail(open.error());
}

std::optional<DaemonPicture> DaemonFeed::Take() {
  if (!waiting_ || !status_ || !metrics_) return std::nullopt;
  waiting_ = false;
  trouble_.reset();
  DaemonPicture picture{std::move(*status_), std::move(metrics_->families), Clock::now()};
  status_.reset();
  metrics_.reset();
  return picture;
}

std::optional<protocol::Error> DaemonFeed::trouble() const {
  if (trouble_) return trouble_;
  if (waiting_ && Clock::now() - asked_ > kSlow) {
    return protocol::Error{protocol::ErrorCode::kUnreachable,
                           "the daemon does not answer",
                           "it hangs, or the machine is overloaded",
                           {}};
  }
  return std::nullopt;
}

}  // namespace mk::client
