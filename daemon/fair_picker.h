// FairPicker: which requests take part in a step, when more want to than fit.
//
// Round robin by client, first come first served within a client: every client with work gets one
// place before any gets a second one, and the client after the one that was served last begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mk::daemon {

class FairPicker {
 public:
  // `clients[i]` is the client of candidate i; candidates are in order of arrival. Returns the
  // indices of at most `limit` candidates, in the order in which they were picked; the span is
  // valid until the next call.
  std::span<const size_t> Pick(std::span<const uint64_t> clients, size_t limit);

 private:
  uint64_t last_client_ = 0;
  std::vector<uint64_t> order_;
  std::vector<size_t> cursor_;
  std::vector<size_t> picked_;
};

}  // namespace mk::daemon
