#include "daemon/fair_picker.h"

#include <algorithm>

namespace mk::daemon {

std::span<const size_t> FairPicker::Pick(std::span<const uint64_t> clients, size_t limit) {
  picked_.clear();
  order_.assign(clients.begin(), clients.end());
  std::sort(order_.begin(), order_.end());
  order_.erase(std::unique(order_.begin(), order_.end()), order_.end());
  const auto next = std::upper_bound(order_.begin(), order_.end(), last_client_);
  std::rotate(order_.begin(), next, order_.end());

  cursor_.assign(order_.size(), 0);  // per client: where to look for its next candidate
  bool any = true;
  while (any && picked_.size() < limit) {
    any = false;
    for (size_t c = 0; c < order_.size() && picked_.size() < limit; ++c) {
      size_t& at = cursor_[c];
      while (at < clients.size() && clients[at] != order_[c]) ++at;
      if (at == clients.size()) continue;
      picked_.push_back(at++);
      last_client_ = order_[c];
      any = true;
    }
  }
  return picked_;
}

}  // namespace mk::daemon
