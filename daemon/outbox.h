// Outbox: the messages of one request on their way to its client.
//
// Messages get consecutive sequence numbers from 0 on. A message that the transport cannot take now
// waits here; one that was sent is remembered until the client acknowledges it, so that the
// producer knows how far it runs ahead. How far it may is the producer's business.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace mk::daemon {

class Outbox {
 public:
  // Number that the next message will get; it is part of the encoded message.
  uint64_t next_seq() const { return next_seq_; }

  // `cost`: bytes that the message counts for in the producer's window; 0: not the producer's.
  void Add(std::string payload, size_t cost) {
    unacked_.push_back({next_seq_++, cost});
    unsent_.push_back(std::move(payload));
  }

  bool has_unsent() const { return !unsent_.empty(); }
  const std::string& front() const { return unsent_.front(); }
  void PopSent() { unsent_.pop_front(); }

  // The client has seen everything up to `seq`; numbers that were never sent are ignored.
  void Acknowledge(uint64_t seq) {
    const uint64_t first_unsent = next_seq_ - unsent_.size();
    while (!unacked_.empty() && unacked_.front().seq <= seq &&
           unacked_.front().seq < first_unsent) {
      if (unacked_.front().cost > 0) {
        ++acked_messages_;
        acked_bytes_ += unacked_.front().cost;
      }
      unacked_.pop_front();
    }
  }

  // Of the producer's messages (cost > 0).
  uint64_t acked_messages() const { return acked_messages_; }
  uint64_t acked_bytes() const { return acked_bytes_; }

 private:
  struct Unacked {
    uint64_t seq = 0;
    size_t cost = 0;
  };
  uint64_t next_seq_ = 0;
  std::deque<std::string> unsent_;
  std::deque<Unacked> unacked_;
  uint64_t acked_messages_ = 0;
  uint64_t acked_bytes_ = 0;
};

}  // namespace mk::daemon
