// SessionLeases: which run writes into which session. One at a time; the others wait in order.
//
// Belongs to the I/O thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace mk::daemon {

// Held, or waited for. Gives up its place when it goes.
class SessionLease;

class SessionLeases {
 public:
  using Key = uint64_t;  // of a request

  struct Calls {
    // It has the session from now on.
    std::function<void(Key)> granted;
    // It waits behind so many others now.
    std::function<void(Key, uint64_t before)> moved;
  };
  explicit SessionLeases(Calls calls);

  // A place in the queue for the session; `granted` is called, at once where nobody has it. The
  // lease may outlive this object.
  std::shared_ptr<SessionLease> Ask(const std::string& name, Key key);

  // Runs that have or wait for the session.
  size_t Count(const std::string& name) const;
  std::map<std::string, uint64_t> Counts() const;
  // Runs before this one in the queue for its session; 0: it has it, or asked for none.
  uint64_t Before(Key key) const;

 private:
  friend class SessionLease;
  struct Queues {
    Calls calls;
    std::map<std::string, std::deque<Key>> by_name;  // the first has the session; never empty
    void Leave(const std::string& name, Key key);
  };
  std::shared_ptr<Queues> queues_;
};

class SessionLease {
 public:
  SessionLease(std::weak_ptr<SessionLeases::Queues> queues, std::string name,
               SessionLeases::Key key)
      : queues_(std::move(queues)), name_(std::move(name)), key_(key) {}
  ~SessionLease();
  SessionLease(const SessionLease&) = delete;
  SessionLease& operator=(const SessionLease&) = delete;

 private:
  const std::weak_ptr<SessionLeases::Queues> queues_;
  const std::string name_;
  const SessionLeases::Key key_;
};

}  // namespace mk::daemon
