#include "daemon/sessions/session_leases.h"

#include <algorithm>
#include <utility>

namespace mk::daemon {

SessionLease::~SessionLease() {
  if (const auto queues = queues_.lock()) queues->Leave(name_, key_);
}

SessionLeases::SessionLeases(Calls calls) : queues_(std::make_shared<Queues>()) {
  queues_->calls = std::move(calls);
}

std::shared_ptr<SessionLease> SessionLeases::Ask(const std::string& name, Key key) {
  auto& queue = queues_->by_name[name];
  queue.push_back(key);
  const bool first = queue.size() == 1;
  auto lease = std::make_shared<SessionLease>(queues_, name, key);
  if (first) queues_->calls.granted(key);
  return lease;
}

size_t SessionLeases::Count(const std::string& name) const {
  const auto found = queues_->by_name.find(name);
  return found != queues_->by_name.end() ? found->second.size() : 0;
}

std::map<std::string, uint64_t> SessionLeases::Counts() const {
  std::map<std::string, uint64_t> counts;
  for (const auto& [name, queue] : queues_->by_name) counts[name] = queue.size();
  return counts;
}

uint64_t SessionLeases::Before(Key key) const {
  for (const auto& [name, queue] : queues_->by_name) {
    const auto place = std::find(queue.begin(), queue.end(), key);
    if (place != queue.end()) return static_cast<uint64_t>(place - queue.begin());
  }
  return 0;
}

void SessionLeases::Queues::Leave(const std::string& name, Key key) {
  const auto found = by_name.find(name);
  if (found == by_name.end()) return;
  std::deque<Key>& queue = found->second;
  const auto place = std::find(queue.begin(), queue.end(), key);
  if (place == queue.end()) return;
  const bool had_it = place == queue.begin();
  queue.erase(place);
  if (queue.empty()) {
    by_name.erase(found);
    return;
  }
  // What is called may come back here.
  const std::deque<Key> left = queue;
  for (size_t i = had_it ? 1 : 0; i < left.size(); ++i) {
    if (i > 0) calls.moved(left[i], i);
  }
  if (had_it) calls.granted(left.front());
}

}  // namespace mk::daemon
