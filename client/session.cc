#include "client/session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace mk::client {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Reply;
using protocol::Result;

namespace {

// Nothing that mk sends is unknown to a daemon of its own build.
void HintAtOlderDaemon(protocol::Error& error, const std::optional<protocol::HelloDone>& hello) {
  const bool unknown = error.message.ends_with("is no field that is known here") ||
                       error.message.starts_with("unknown op ");
  if (error.code != ErrorCode::kBadRequest || !unknown) return;
  if (hello && hello->build_id == protocol::BuildId()) return;
  error.hint = "the daemon is of another build" +
               (hello ? " (" + hello->build_id + ")" : std::string()) + "; `mk restart` mends it";
}

}  // namespace

Session::Session(Connection connection) : connection_(std::move(connection)) {
  protocol::HelloArgs hello;
  hello.build_id = protocol::BuildId();
  hello.client = "mk";
  hello.pid = static_cast<uint64_t>(::getpid());
  hello_id_ = next_id_++;
  open_.emplace_back(hello_id_, protocol::Op::kHello);
  connection_.Queue(protocol::EncodeRequest({protocol::kProtocolMax, hello_id_, std::move(hello)}));
}

Result<uint64_t> Session::Send(protocol::Args args, uint32_t version) {
  const protocol::Request request{version, next_id_++, std::move(args)};
  const std::string bytes = protocol::EncodeRequest(request);
  if (bytes.size() > protocol::kLimits.message_bytes) {
    return Fail(ErrorCode::kBadRequest, "the request is larger than a message may be",
                "shorten the prompt");
  }
  const protocol::Op op = protocol::OpOf(request);
  if (op != protocol::Op::kAck) open_.emplace_back(request.id, op);
  connection_.Queue(bytes);
  if (protocol::Status sent = connection_.Flush(); !sent) return Fail(std::move(sent.error()));
  return request.id;
}

std::optional<protocol::Op> Session::OpOfId(uint64_t id) const {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [id](const auto& entry) { return entry.first == id; });
  if (found == open_.end()) return std::nullopt;
  return found->second;
}

Result<std::optional<Reply>> Session::Take() {
  std::string message;
  while (connection_.NextMessage(message)) {
    Result<Reply> reply =
        protocol::DecodeReply(message, [this](uint64_t id) { return OpOfId(id); });
    if (!reply) {
      return Fail(ErrorCode::kInternal,
                  "the daemon's answer is not understood: " + reply.error().message,
                  "`mk restart` replaces a daemon of another version");
    }
    const protocol::ReplyType type = protocol::TypeOf(reply->body);
    if (type == protocol::ReplyType::kDone || type == protocol::ReplyType::kError) {
      std::erase_if(open_, [&](const auto& entry) { return entry.first == reply->id; });
    }
    auto* error = std::get_if<protocol::Error>(&reply->body);
    if (error != nullptr) HintAtOlderDaemon(*error, hello_);
    // A message whose id the daemon could not find is refused under id 0. All of ours have one, so
    // this answers whatever is open.
    if (reply->id == 0 && error != nullptr) return Fail(std::move(*error));
    if (reply->id != hello_id_) return std::optional<Reply>(std::move(*reply));
    if (error != nullptr) return Fail(std::move(*error));
    if (auto* hello = std::get_if<protocol::HelloDone>(&reply->body)) hello_ = std::move(*hello);
  }
  return std::optional<Reply>();
}

Result<std::optional<Reply>> Session::Wait(Deadline deadline) {
  if (protocol::Status sent = connection_.Flush(); !sent) return Fail(std::move(sent.error()));
  while (true) {
    const bool knew_hello = hello_.has_value();
    Result<std::optional<Reply>> reply = Take();
    if (!reply || *reply) return reply;
    if (hello_ && !knew_hello) return reply;
    pollfd ready = {connection_.fd(), connection_.events(), 0};
    const int count = ::poll(&ready, 1, PollTimeout(deadline));
    if (count == 0) return std::optional<Reply>();
    if (count < 0) continue;  // EINTR
    const protocol::Status status = connection_.OnReady(ready.revents);
    if (status) continue;
    // What came before the end is still worth having.
    reply = Take();
    if (!reply || *reply) return reply;
    return Fail(status.error());
  }
}

Result<protocol::HelloDone> Session::Hello(Deadline deadline) {
  while (!hello_) {
    Result<std::optional<Reply>> reply = Wait(deadline);
    if (!reply) return Fail(std::move(reply.error()));
    if (!hello_ && Clock::now() >= deadline) {
      return Fail(ErrorCode::kUnreachable, "the daemon does not answer",
                  "it hangs; its log may say why; end it with SIGKILL and start it again");
    }
  }
  return *hello_;
}

Result<protocol::Body> Ask(Session& session, protocol::Args args, Deadline deadline) {
  Result<uint64_t> id = session.Send(std::move(args));
  if (!id) return Fail(std::move(id.error()));
  while (true) {
    Result<std::optional<Reply>> reply = session.Wait(deadline);
    if (!reply) return Fail(std::move(reply.error()));
    if (!*reply) {
      if (Clock::now() < deadline) continue;  // that was the hello
      return Fail(ErrorCode::kUnreachable, "the daemon does not answer",
                  "it hangs; its log may say why; end it with SIGKILL and start it again");
    }
    if ((*reply)->id != *id) continue;
    if (auto* error = std::get_if<protocol::Error>(&(*reply)->body)) return Fail(std::move(*error));
    if (protocol::TypeOf((*reply)->body) == protocol::ReplyType::kDone) {
      return std::move((*reply)->body);
    }
  }
}

}  // namespace mk::client
