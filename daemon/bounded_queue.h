// BoundedQueue: how the daemon's threads hand plain values to one consumer.
//
// Any number of producers, one consumer. Every push signals the queue's EventFd, so that the
// consumer can wait for several things in one poll(). The lock is held for a move of one value,
// never across work.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "daemon/event_fd.h"

namespace mk::daemon {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False, and the value is left alone, when the queue is full or closed. Never waits.
  bool TryPush(T&& value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || values_.size() >= capacity_) return false;
      values_.push_back(std::move(value));
    }
    event_.Signal();
    return true;
  }

  // Waits for room. False when the queue is closed.
  bool Push(T value) {
    {
      std::unique_lock lock(mutex_);
      room_.wait(lock, [this] { return closed_ || values_.size() < capacity_; });
      if (closed_) return false;
      values_.push_back(std::move(value));
    }
    event_.Signal();
    return true;
  }

  std::optional<T> TryPop() {
    std::optional<T> value;
    {
      std::lock_guard lock(mutex_);
      if (values_.empty()) return value;
      value.emplace(std::move(values_.front()));
      values_.pop_front();
    }
    room_.notify_one();
    return value;
  }

  // Refuses further pushes and frees producers that wait; what is queued can still be popped.
  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    room_.notify_all();
    event_.Signal();
  }

  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return values_.size();
  }
  // Readable when there may be something to pop. The consumer clears it before it pops.
  const EventFd& event() const { return event_; }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::deque<T> values_;
  bool closed_ = false;
  EventFd event_;
};

}  // namespace mk::daemon
