// A daemon of a few lines on a real libzmq ROUTER: it answers requests as a test tells it to.

#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "protocol/messages.h"

namespace mk::client::testing {

// A folder of mode 0700 that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/mk-client-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FakeDaemon {
 public:
  // Sends replies to the request that is being handled.
  using Send = std::function<void(uint64_t id, uint64_t seq, protocol::Body body)>;
  // Called for every request but hello, on the daemon's thread.
  using Handler = std::function<void(const protocol::Request& request, const Send& send)>;

  explicit FakeDaemon(Handler handler, int heartbeat_ms = 0, protocol::Body hello = GoodHello())
      : handler_(std::move(handler)), hello_(std::move(hello)) {
    router_ = zmq::socket_t(context_, zmq::socket_type::router);
    router_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::sndhwm, 0);  // else a ROUTER drops what it cannot send at once
    router_.set(zmq::sockopt::maxmsgsize, int64_t{64} << 20);
    if (heartbeat_ms > 0) router_.set(zmq::sockopt::heartbeat_ivl, heartbeat_ms);
    router_.bind("ipc://" + socket());
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeDaemon() { Stop(); }

  static protocol::Body GoodHello() { return protocol::HelloDone{1, 1, 1, "0", "fake", 1}; }

  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
    router_.close();
  }

  std::string socket() const { return folder_ / "d.sock"; }
  const TempFolder& folder() const { return folder_; }

  // What came so far, hello included.
  std::vector<protocol::Request> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  template <typename Args>
  std::vector<Args> requests_of() {
    std::vector<Args> found;
    for (const auto& request : requests()) {
      if (const auto* args = std::get_if<Args>(&request.args)) found.push_back(*args);
    }
    return found;
  }
  // Waits until a condition on what came holds.
  template <typename Condition>
  bool WaitUntil(const Condition& condition, int seconds = 20) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  void Run() {
    while (!stopping_) {
      zmq::pollitem_t item = {router_.handle(), 0, ZMQ_POLLIN, 0};
      zmq::poll(&item, 1, std::chrono::milliseconds(5));
      if ((item.revents & ZMQ_POLLIN) == 0) continue;
      zmq::message_t peer;
      zmq::message_t payload;
      if (!router_.recv(peer) || !router_.recv(payload)) continue;
      const auto request = protocol::DecodeRequest(payload.to_string_view());
      const Send send = [&](uint64_t id, uint64_t seq, protocol::Body body) {
        router_.send(zmq::buffer(peer.to_string()), zmq::send_flags::sndmore);
        router_.send(zmq::buffer(protocol::EncodeReply({id, seq, std::move(body)})),
                     zmq::send_flags::none);
      };
      if (!request) {
        send(request.error().id, 0, request.error().error);
        continue;
      }
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(*request);
      }
      if (std::holds_alternative<protocol::HelloArgs>(request->args)) {
        send(request->id, 0, hello_);
      } else {
        handler_(*request, send);
      }
    }
  }

  TempFolder folder_;
  const Handler handler_;
  const protocol::Body hello_;
  zmq::context_t context_;
  zmq::socket_t router_;
  std::mutex mutex_;
  std::vector<protocol::Request> requests_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mk::client::testing
